//! Measures a store behind its service, over loopback: `serve_bench DIR [SECONDS]`. CPU is the
//! server's, the client's own thread is taken off.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{CLUSTER, Failure, open};
use prost::Message;
use saker_rpc::frame::Decoder;
use saker_rpc::{
    Bytes, Frame, FrameKind, Hello, HelloPolicy, NodeNumber, RoleKind, Service, ServiceConfig,
    ShellConfig, StopHandle, serve,
};
use saker_runtime::fs::RealDir;
use saker_runtime::thread;
use saker_runtime::time::{now, process_cpu, thread_cpu};
use saker_store::StoreService;
use saker_types::wire::{ChunkReadReq, ChunkSyncReq, ChunkWriteReq, Op};

const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of all files.
const DATA_BYTES: u64 = 512 << 20;
/// Requests under way.
const WINDOW: u64 = 8;

struct Client {
    stream: TcpStream,
    decoder: Decoder,
    buffer: Vec<u8>,
    calls: u64,
}

impl Client {
    fn connect(addr: SocketAddr) -> Result<Client, Failure> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let buffer = vec![0; 1 << 20];
        let mut client = Client { stream, decoder: Decoder::new(), buffer, calls: 0 };
        let hello = Hello::new(RoleKind::Client, NodeNumber(0), Some(CLUSTER)).encode_to_vec();
        let hello = Frame::request(0, 0, hello.into(), Bytes::new());
        client.stream.write_all(&Frame { kind: FrameKind::Hello, ..hello }.to_bytes())?;
        client.receive()?;
        Ok(client)
    }

    fn send(&mut self, op: Op, body: &impl Message, payload: Bytes) -> Result<(), Failure> {
        self.calls += 1;
        let frame = Frame::request(op as u16, 0, body.encode_to_vec().into(), payload);
        Ok(self.stream.write_all(&Frame { call: self.calls, ..frame }.to_bytes())?)
    }

    fn receive(&mut self) -> Result<Frame, Failure> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return if frame.status == 0 { Ok(frame) } else { Err("refused".into()) };
            }
            let read = self.stream.read(&mut self.buffer)?;
            self.decoder.push(&self.buffer[..read]);
        }
    }
}

/// Keeps `WINDOW` requests under way for so long; reports.
fn phase(
    name: &str,
    client: &mut Client,
    seconds: f64,
    mut send: impl FnMut(&mut Client, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (start, all, own) = (now(), process_cpu(), thread_cpu());
    let (mut sent, mut ended) = (0, 0);
    while sent < WINDOW {
        send(client, sent)?;
        sent += 1;
    }
    while ended < sent {
        client.receive()?;
        ended += 1;
        if (now() - start).as_secs_f64() < seconds {
            send(client, sent)?;
            sent += 1;
        }
    }
    let cpu = process_cpu().saturating_sub(all).saturating_sub(thread_cpu() - own);
    let rate = ended as f64 / (now() - start).as_secs_f64();
    println!(
        "{name}: {rate:.0} ops/s, {:.2} us CPU per op",
        cpu.as_secs_f64() * 1e6 / ended as f64
    );
    Ok(())
}

fn read_of(i: u64, bytes: u64) -> ChunkReadReq {
    // In another order than that of the log.
    let at = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % (DATA_BYTES / bytes) * bytes;
    let (id, index, offset) =
        (1 + at / (64 * CHUNK_BYTES), at / CHUNK_BYTES % 64, at % CHUNK_BYTES);
    ChunkReadReq { id, index, offset, len: bytes, ..Default::default() }
}

fn write_of(i: u64, data: &Bytes, crc: u32, first_id: u64) -> ChunkWriteReq {
    let at = i * data.len() as u64;
    let (id, index, offset) =
        (first_id + at / (64 * CHUNK_BYTES), at / CHUNK_BYTES % 64, at % CHUNK_BYTES);
    let (writer, seq) = (9, first_id << 32 | i);
    ChunkWriteReq { id, index, offset, crc, writer, seq, replicas: vec![0], ..Default::default() }
}

/// Takes the store's data out of the page cache.
#[allow(clippy::disallowed_methods, reason = "it looks at files behind the store's back")]
fn evict(path: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(path.join("segments"))? {
        let file = std::fs::File::open(entry?.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("usage: serve_bench DIR [SECONDS]")?);
    let seconds: f64 = args.next().map_or(Ok(2.0), |text| text.parse())?;
    let store = open(&path)?;
    store.start()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (addr, stop) = (listener.local_addr()?, StopHandle::new());
    let serving = {
        let dir = Arc::new(RealDir::open(&path)?);
        let service: Arc<dyn Service> = Arc::new(StoreService::new(dir, store)?);
        let policy = HelloPolicy { cluster: Some(CLUSTER), ..HelloPolicy::default() };
        let hello = Hello::new(RoleKind::Store, NodeNumber(1), Some(CLUSTER));
        let (shell, stop) = (ShellConfig::new(hello, policy), stop.clone());
        let config = ServiceConfig { shells: 2, ..ServiceConfig::default() };
        thread::spawn("serve", move || serve(&listener, &service, &shell, &config, &stop))?
    };
    let mut client = Client::connect(addr)?;
    let data = Bytes::from((0..1u64 << 20).map(|i| (i * 7 + i / 250) as u8).collect::<Vec<_>>());
    let sums: Vec<(Bytes, u32)> = [1 << 20, 64 << 10, 4 << 10]
        .map(|len| (data.slice(..len), crc32c::crc32c(&data[..len])))
        .to_vec();
    for i in 0..DATA_BYTES >> 20 {
        client.send(Op::ChunkWrite, &write_of(i, &sums[0].0, sums[0].1, 1), sums[0].0.clone())?;
        client.receive()?;
    }
    for (n, (data, crc)) in sums.iter().enumerate() {
        let name = format!("write {} KiB", data.len() >> 10);
        phase(&name, &mut client, seconds, |client, i| {
            let req = write_of(i, data, *crc, 1000 * (n as u64 + 1));
            client.send(Op::ChunkWrite, &req, data.clone())
        })?;
    }
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        phase(&format!("read {} KiB", bytes >> 10), &mut client, seconds, |client, i| {
            client.send(Op::ChunkRead, &read_of(i, bytes), Bytes::new())
        })?;
    }
    client.send(Op::ChunkSync, &ChunkSyncReq::default(), Bytes::new())?;
    client.receive()?;
    for bytes in [4 << 10, 1 << 20] {
        evict(&path)?;
        phase(&format!("cold read {} KiB", bytes >> 10), &mut client, 0.5, |client, i| {
            client.send(Op::ChunkRead, &read_of(i, bytes), Bytes::new())
        })?;
    }
    stop.stop();
    serving.join().map_err(|_| "the server panicked")??;
    Ok(())
}
