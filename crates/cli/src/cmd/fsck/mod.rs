//! `saker fsck`.
mod check;
mod chunks;
mod problem;
mod rows;
#[cfg(test)]
mod tests;
