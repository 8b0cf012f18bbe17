//! `saker dataset pack`: files into partitions.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use saker_dataset::Codec;
use saker_dataset::pack::{self, Listed, LocalTree, Options, Plan, Source};
use saker_runtime::time;

use super::failure;
use crate::fail::{Context, Failure, Outcome};
use crate::{format, progress, signals};

/// Pack files into partitions.
///
/// SRC is a directory, or - for a list of paths on stdin, one on a line (or ended by a zero byte,
/// with --null), relative to the working directory. Names, links, owners, permissions, times and
/// extended attributes are kept.
///
/// The same files give the same bytes. A run that was stopped or killed goes on where it was, when
/// it is started again with the same files and options.
#[derive(clap::Args)]
#[command(
    after_long_help = "EXAMPLES\n  saker dataset pack ~/imagenet --partitions 48 -o /data/imagenet\n  \
    find . -name '*.jpg' | saker dataset pack - --partitions 8 --compress zstd -o /data/jpegs"
)]
pub struct Args {
    /// What is packed.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Files to make. As many as there are nodes that will keep them, or a multiple of that.
    #[arg(short, long, value_name = "P", default_value_t = 1)]
    partitions: u32,
    /// How data is compressed: none, lz4, zstd or zstd:LEVEL. What does not get smaller is stored
    /// as it is.
    #[arg(short, long, value_name = "HOW", default_value = "none")]
    compress: Codec,
    /// The dataset's directory, which is made.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Threads that read and compress [default: one for each core].
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Paths on stdin end with a zero byte, as those of `find -print0`.
    #[arg(short = '0', long)]
    null: bool,
    /// Print one JSON document: what dataset.json says.
    #[arg(long)]
    json: bool,
}

fn source(args: &Args) -> Outcome<Box<dyn Source>> {
    if args.source != Path::new("-") {
        return Ok(Box::new(LocalTree::new(&args.source)));
    }
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::usage("-", "the list of paths comes on stdin"));
    }
    let mut raw = Vec::new();
    stdin.read_to_end(&mut raw).about("stdin")?;
    let end = if args.null { 0 } else { b'\n' };
    let paths = raw.split(|c| *c == end).filter(|path| !path.is_empty()).map(<[u8]>::to_vec);
    Ok(Box::new(Listed::new(Path::new("."), paths).map_err(failure)?))
}

/// A dataset that is made below what is packed would be packed, too.
fn must_be_apart(args: &Args) -> Outcome {
    let Ok(source) = args.source.canonicalize() else { return Ok(()) };
    // The nearest directory that is there.
    let output = std::path::absolute(&args.output).about(args.output.display())?;
    let there = output.ancestors().find_map(|dir| dir.canonicalize().ok());
    if there.is_some_and(|there| there.starts_with(&source)) {
        let why = format!("is below {}, which is packed", args.source.display());
        return Err(Failure::usage(args.output.display(), why));
    }
    Ok(())
}

/// Packs on a thread of its own, shows how far it has come of `files` files with `bytes`, and sets
/// `stops` at Ctrl-C.
pub fn show<T: Send>(
    (files, bytes): (u64, u64),
    done: &pack::Progress,
    stops: &[&AtomicBool],
    work: impl FnOnce() -> T + Send,
) -> T {
    let bar = progress::Progress::of_bytes(bytes);
    let result = progress::watch(work, || {
        if signals::interrupted() {
            stops.iter().for_each(|stop| stop.store(true, Relaxed));
        }
        bar.set(done.bytes.load(Relaxed));
        bar.say(format!("{} of {files} files", done.files.load(Relaxed)));
    });
    bar.done();
    result
}

pub fn run(args: &Args) -> Outcome<u8> {
    if args.partitions == 0 {
        return Err(Failure::usage("--partitions", "at least one"));
    }
    signals::catch_interrupt();
    must_be_apart(args)?;
    let source = source(args)?;
    let options = Options {
        partitions: args.partitions,
        codec: args.compress,
        threads: args.threads.unwrap_or(0),
        ..Options::default()
    };
    let begin = time::now();
    let plan = Plan::of(&*source).map_err(failure)?;
    let (done, totals) = (pack::Progress::default(), plan.totals());
    let packed = show(totals, &done, &[&done.stop], || {
        pack::pack(&*source, plan, &args.output, &options, &done)
    });
    let (manifest, resumed) = (packed.map_err(failure)?, done.resumed_bytes.load(Relaxed));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&manifest).about("json")?);
        return Ok(0);
    }
    let stored: u64 = manifest.partitions.iter().map(|part| part.stored).sum();
    let seconds = (time::now() - begin).as_secs_f64();
    println!(
        "{} files, {} packed into {} partitions of {} in {seconds:.1} s{}",
        manifest.files,
        format::bytes(manifest.bytes),
        manifest.partitions.len(),
        format::bytes(stored),
        match resumed {
            0 => String::new(),
            resumed => format!(" ({} by an earlier run)", format::bytes(resumed)),
        }
    );
    println!("digest {}", manifest.digest);
    Ok(0)
}
