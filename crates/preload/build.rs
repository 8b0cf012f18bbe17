//! Compiles what stable Rust cannot say: functions with any number of arguments.

fn main() {
    println!("cargo::rerun-if-changed=src/execl.c");
    cc::Build::new().file("src/execl.c").compile("saker_execl");
}
