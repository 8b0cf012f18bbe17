//! Writing: what is kept, when it is sent, and how it gets to stores and owners.

pub(crate) mod back;
pub(crate) mod out;
pub(crate) mod writer;

#[cfg(test)]
mod tests;
