//! Compiles the kernel's half of the hints (`src/names/hint/`), and sets `cfg(bpf)` when there is one:
//! with the feature `bpf`, where clang can be run.

use std::env;
use std::path::Path;
use std::process::Command;

const DIR: &str = "src/names/hint";
const SOURCE: &str = "hint.bpf.c";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(bpf)");
    println!("cargo::rerun-if-changed={DIR}");
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-env-changed=PATH");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        println!("cargo::warning=no {clang}: mounts will do without hints by BPF");
        return;
    }
    match compile(&clang) {
        Ok(()) => println!("cargo::rustc-cfg=bpf"),
        Err(why) => println!("cargo::error={SOURCE}: {why}"),
    }
}

fn compile(clang: &str) -> Result<(), String> {
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "-D__TARGET_ARCH_x86",
        Ok("aarch64") => "-D__TARGET_ARCH_arm64",
        other => return Err(format!("no registers are known for {other:?}")),
    };
    let out = env::var("OUT_DIR").map_err(|e| e.to_string())?;
    // v3 has compare-and-swap; -g for BTF, which holds the map's and the kernel's types.
    let status = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", arch])
        .args(["-fdebug-compilation-dir=.", "-c", SOURCE, "-o"])
        .arg(Path::new(&out).join("hint.bpf.o"))
        .current_dir(DIR)
        .status()
        .map_err(|e| format!("{clang}: {e}"))?;
    status.success().then_some(()).ok_or_else(|| format!("{clang}: {status}"))
}
