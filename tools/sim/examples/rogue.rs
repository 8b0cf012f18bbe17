//! What another client that makes files in a subtree costs the one that works there (Cudele section 5.3):
//! `rogue [FILES] [ROUNDS]` makes so many files through one mount, alone, and while another mount tries the
//! same as fast as it can, which `interfere_policy` blocks or allows. The three take turns; medians are
//! shown. Needs root; run it with --release, beside a released `saker`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use saker_sim::cluster::{ClusterShape, OwnMount, RunningCluster};
use saker_sim::copier::is_mounted;
use saker_sim::wait::until;

const POLICIES: [(&str, &str); 2] = [("strong", "global"), ("weak", "none")];
/// How the owner works, and the policy of the subtree then.
const WAYS: [(&str, &str); 3] = [("alone", "block"), ("blocked", "block"), ("allowed", "allow")];

/// Of one run.
#[derive(Clone, Copy)]
struct Figures {
    per_s: f64,
    /// CPU time of the owner's mount for each file, us.
    cpu_us: f64,
    rogue_per_s: f64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let files: u64 = args.next().map_or(10_000, |n| n.parse().unwrap());
    let rounds: usize = args.next().map_or(3, |n| n.parse().unwrap());
    let shape = ClusterShape { mnodes: 2, stores: 1, ..ClusterShape::default() };
    let cluster = RunningCluster::start(shape);
    let mounted = |name: &str| {
        let mount = cluster.own_mount(name, "");
        until(name, || is_mounted(&mount.path("")));
        mount
    };
    let (owner, rogue) = (mounted("owner"), mounted("rogue"));
    for (consistency, durability) in POLICIES {
        let mut figures = [const { Vec::new() }; WAYS.len()];
        for round in 0..rounds {
            for (n, (way, interfere)) in WAYS.into_iter().enumerate() {
                let name = format!("{consistency}-{durability}-{way}-{round}");
                fs::create_dir(owner.path(&name)).unwrap();
                let place = format!("/{name}");
                let words = ["policy", "set", &place, "--consistency", consistency];
                let keys = ["--durability", durability, "--interfere-policy", interfere];
                let set = cluster.saker(&[&words[..], &keys].concat());
                assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
                let rogue = (way != "alone").then(|| rogue.path(&name));
                figures[n].push(measure(&owner, &name, files, rogue.as_deref()));
            }
        }
        println!("{consistency}/{durability}, {files} files, medians of {rounds} runs:");
        let alone = median(&figures[0]);
        for ((way, _), of_way) in WAYS.iter().zip(&figures) {
            let Figures { per_s, cpu_us, rogue_per_s } = median(of_way);
            println!(
                "  {way:<8} {per_s:>7.0}/s ({:.2} of alone), {cpu_us:>5.1} us of CPU each ({:.2}), the \
                 rogue {rogue_per_s:.0}/s",
                per_s / alone.per_s,
                cpu_us / alone.cpu_us,
            );
        }
    }
}

/// Each figure's median.
fn median(figures: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let mut all: Vec<f64> = figures.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (per_s, cpu_us) = (of(|one| one.per_s), of(|one| one.cpu_us));
    Figures { per_s, cpu_us, rogue_per_s: of(|one| one.rogue_per_s) }
}

fn measure(owner: &OwnMount, name: &str, files: u64, rogue: Option<&Path>) -> Figures {
    let (stop, attempts) = (AtomicBool::new(false), AtomicU64::new(0));
    let dir = owner.path(name);
    // It takes the hold before the rogue comes.
    File::create_new(dir.join("first")).unwrap();
    std::thread::scope(|scope| {
        if let Some(rogue) = rogue {
            let (stop, attempts) = (&stop, &attempts);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let n = attempts.fetch_add(1, Ordering::Relaxed);
                    let _ = File::create_new(rogue.join(format!("rogue-{n}")));
                }
            });
        }
        let pid = owner.process.id();
        let (start, cpu) = (Instant::now(), cpu_us(pid));
        for n in 0..files {
            File::create_new(dir.join(format!("file-{n}"))).unwrap();
        }
        let (took, cpu) = (start.elapsed().as_secs_f64(), cpu_us(pid) - cpu);
        stop.store(true, Ordering::Relaxed);
        let rogue_per_s = attempts.load(Ordering::Relaxed) as f64 / took;
        Figures { per_s: files as f64 / took, cpu_us: cpu / files as f64, rogue_per_s }
    })
}

/// CPU time of a process, us.
fn cpu_us(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of_task = |task: fs::DirEntry| -> Option<f64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e3)
    };
    tasks.filter_map(of_task).sum()
}
