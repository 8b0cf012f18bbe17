//! What making files in a subtree costs that is served inside of its client:
//! `private_creates [FILES] [DIR]` makes so many in memory, and with a journal in DIR if there is one, one
//! after the other on one thread. For comparison it does the same through an MNode of this process, in
//! DIR too.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saker_client::{Caller, ClientOptions, ClusterAddr, Fs, KeptIn, OpenFlags, PrivateServers};
use saker_rpc::node::StopHandle;
use saker_types::wire::{At, IdRange};
use saker_types::{Inode, Locator};

const WRITE: OpenFlags = OpenFlags {
    read: false,
    write: true,
    append: false,
    truncate: false,
    exclusive: true,
    execute: false,
};

fn main() {
    let mut args = std::env::args().skip(1);
    let files: u64 = args.next().map_or(200_000, |n| n.parse().unwrap());
    let dir: Option<PathBuf> = args.next().map(Into::into);
    let scratch = tempfile::tempdir().unwrap();
    let stop = StopHandle::new();
    let fs = serve(dir.as_deref().unwrap_or(scratch.path()), &stop);
    let who = Caller::root();
    let sub = fs.block_on(fs.mkdir(&who, &At::child(Locator::root(), b"sub"), 0o755)).unwrap();
    let private = |kept| {
        let row = Inode { attr: sub.attr.clone(), ..Inode::default() };
        let servers = fs.block_on(PrivateServers::start(&fs, kept, &sub.loc, row)).unwrap();
        let ids = IdRange { first: 1 << 30, count: 4 * files };
        fs.block_on(servers.give_ids(ids)).unwrap();
        servers
    };
    let servers = private(KeptIn::Memory);
    measure("private, memory", servers.fs(), &who, &sub.loc, files);
    let start = Instant::now();
    let changes = fs.block_on(servers.changes(false)).unwrap();
    println!("{} changes found in {:.0} ms", changes.len(), start.elapsed().as_secs_f64() * 1e3);
    drop(servers);
    if let Some(dir) = dir {
        let servers = private(KeptIn::Dir(dir.join("private")));
        measure("private, directory", servers.fs(), &who, &sub.loc, files / 20);
        drop(servers);
        measure("MNode", &fs, &who, &sub.loc, files / 20);
    }
    fs.close().unwrap();
    stop.stop();
}

fn measure(what: &str, fs: &Fs, who: &Caller, dir: &Locator, files: u64) {
    let make = async |name: String| {
        let at = At::child(dir.clone(), name.as_bytes());
        fs.create(who, &at, 0o644, WRITE).await.unwrap().0.release().await;
    };
    fs.block_on(async {
        for n in 0..1000 {
            make(format!("warm-{n}")).await;
        }
    });
    let (start, cpu) = (Instant::now(), cpu_time());
    fs.block_on(async {
        for n in 0..files {
            make(format!("file-{n}")).await;
        }
    });
    let (took, cpu) = (start.elapsed(), cpu_time() - cpu);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / files as f64;
    println!(
        "{what}: {files} files, {:.0}/s, {:.1} us and {:.1} us of CPU each",
        files as f64 / took.as_secs_f64(),
        each(took),
        each(cpu)
    );
}

/// Of all threads of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A coordinator and an MNode without stores.
fn serve(dir: &Path, stop: &StopHandle) -> Fs {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (coordinator, shard): (SocketAddr, SocketAddr) = (free(), free());
    let http: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let text = format!(
        "data_dir = '{0}/coordinator'\nlisten = '{coordinator}'\nhttp = '{http}'\n\
         [cluster]\nname = 'bench'\nstores = []\nshards = [{{ mnode = 0, addr = '{shard}' }}]\n",
        dir.display()
    );
    let config: saker_coordinator::Config = toml::from_str(&text).unwrap();
    let text = format!(
        "n = 0\ndata_dir = '{0}/mnode'\nlisten = ['{shard}']\nhttp = '{http}'\n\
         coordinator = '{coordinator}'\n",
        dir.display()
    );
    let mnode: saker_meta::Config = toml::from_str(&text).unwrap();
    for dir in [&config.data_dir, &mnode.data_dir] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let (first, second) = (stop.clone(), stop.clone());
    std::thread::spawn(move || saker_coordinator::serve(config, &first).unwrap());
    std::thread::spawn(move || saker_meta::serve(mnode, &second).unwrap());
    let options = ClientOptions::default();
    Fs::connect(&ClusterAddr::Coordinators(vec![coordinator]), options).unwrap()
}
