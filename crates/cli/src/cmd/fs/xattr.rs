//! `saker fs setfattr` and `getfattr`: extended attributes.

use std::path::PathBuf;

use saker_types::id::hex;

use crate::fail::{Failure, Outcome};
use crate::session::{self, CliSession, ClusterArg, ClusterPath, each};

/// Set or remove an extended attribute.
#[derive(clap::Args)]
pub struct SetArgs {
    /// Its name with its namespace, as user.colour.
    #[arg(short, value_name = "NAME", required_unless_present = "remove")]
    name: Option<String>,
    /// Its value: text, or bytes in hexadecimal after 0x (default: empty).
    #[arg(short, value_name = "VALUE", default_value = "")]
    value: String,
    /// Remove this one.
    #[arg(short = 'x', value_name = "NAME", conflicts_with_all = ["name", "value"])]
    remove: Option<String>,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

/// Show extended attributes.
#[derive(clap::Args)]
pub struct GetArgs {
    /// This one (default: all of them).
    #[arg(short, value_name = "NAME")]
    name: Option<String>,
    /// Names without values.
    #[arg(long, conflicts_with = "name")]
    names: bool,
    #[allow(missing_docs)]
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn set(cluster: &ClusterArg, args: &SetArgs) -> Outcome<u8> {
    let value = parse_value(&args.value)?;
    let (session, paths) = session::open(cluster, &args.paths)?;
    let (fs, who) = (&session.fs, &session.who);
    each(&paths, |path| {
        let (at, _) = session.find(path, true)?;
        if let Some(name) = &args.remove {
            session.run(path, fs.removexattr(who, &at, name.as_bytes()))?;
        }
        match &args.name {
            Some(name) => session.run(path, fs.setxattr(who, &at, name.as_bytes(), &value, 0)),
            None => Ok(()),
        }
    })
}

pub fn get(cluster: &ClusterArg, args: &GetArgs) -> Outcome<u8> {
    let (session, paths) = session::open(cluster, &args.paths)?;
    each(&paths, |path| show(&session, path, args))
}

fn show(session: &CliSession, path: &ClusterPath, args: &GetArgs) -> Outcome {
    let (at, _) = session.find(path, true)?;
    let names = match &args.name {
        Some(name) => name.clone().into_bytes(),
        None => session.run(path, session.fs.listxattr(&session.who, &at))?.to_vec(),
    };
    let names: Vec<&[u8]> = names.split(|b| *b == 0).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Ok(());
    }
    println!("# file: {path}");
    for name in names {
        let shown = String::from_utf8_lossy(name);
        if args.names {
            println!("{shown}");
            continue;
        }
        let value = session.run(path, session.fs.getxattr(&session.who, &at, name))?;
        println!("{shown}={}", show_value(&value));
    }
    println!();
    Ok(())
}

/// Text, or hexadecimal after `0x`.
fn parse_value(text: &str) -> Outcome<Vec<u8>> {
    let Some(digits) = text.strip_prefix("0x") else { return Ok(text.as_bytes().to_vec()) };
    let byte = |i: usize| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| Failure::usage(text, "not hexadecimal bytes"))
}

/// What [`parse_value`] reads back: printable text in quotes, everything else in hexadecimal.
fn show_value(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text)
            if !text.chars().any(|c| c.is_control() || c == '"') && !text.starts_with("0x") =>
        {
            format!("\"{text}\"")
        }
        _ => format!("0x{}", hex(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_command_line() {
        assert_eq!(show_value(b"red"), "\"red\"");
        assert_eq!(parse_value("red").unwrap(), b"red");
        for value in [&b"\0\xff"[..], b"a\nb", b"0xy"] {
            assert_eq!(parse_value(&show_value(value)).unwrap(), value);
        }
        assert_eq!(parse_value("0x1").unwrap_err().code, 2);
        assert_eq!(parse_value("0xzz").unwrap_err().code, 2);
    }
}
