//! What the servers of a cluster say that they have done: how many requests an operation cost, and
//! whether what was read came from them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::layout::ClusterLayout;

/// Counters of all MNodes and stores together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that MNodes have served, by operation of the wire.
    pub requests: BTreeMap<String, u64>,
    /// Bytes of chunks that stores have read.
    pub store_read_bytes: u64,
}

/// How long one server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const REQUESTS: &str = "saker_mnode_requests_total{op=\"";
const READ_BYTES: &str = "saker_store_read_bytes_total ";

impl Counts {
    /// Asks every server; an error if one does not answer, as a sum without it means nothing.
    pub fn of(cluster: &ClusterLayout) -> io::Result<Counts> {
        let mnodes = cluster.mnode.iter().map(|node| node.http);
        let stores = cluster.store.iter().map(|store| store.http);
        let mut counts = Counts::default();
        for addr in mnodes.chain(stores) {
            counts.add(&fetch(addr)?);
        }
        Ok(counts)
    }

    /// What was done between two looks.
    pub fn since(&self, before: &Counts) -> Counts {
        let since = |(op, now): (&String, &u64)| {
            let more = now.saturating_sub(before.requests.get(op).copied().unwrap_or(0));
            (more > 0).then(|| (op.clone(), more))
        };
        Counts {
            requests: self.requests.iter().filter_map(since).collect(),
            store_read_bytes: self.store_read_bytes.saturating_sub(before.store_read_bytes),
        }
    }

    fn add(&mut self, metrics: &str) {
        for line in metrics.lines() {
            if let Some((op, value)) = line.strip_prefix(REQUESTS).and_then(|l| l.split_once("\"}"))
            {
                *self.requests.entry(op.to_owned()).or_default() +=
                    value.trim().parse().unwrap_or(0);
            } else if let Some(value) = line.strip_prefix(READ_BYTES) {
                self.store_read_bytes += value.trim().parse().unwrap_or(0);
            }
        }
    }
}

fn fetch(addr: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE saker_mnode_requests_total counter\n\
        saker_mnode_requests_total{op=\"open\"} 7\n\
        saker_mnode_requests_total{op=\"lookup\"} 2\n\
        saker_store_read_bytes_total 4096\nsaker_store_reads_total 1\n";

    #[test]
    fn counters_are_added_and_subtracted() {
        let mut before = Counts::default();
        before.add(METRICS);
        let mut after = before.clone();
        after.add("saker_mnode_requests_total{op=\"open\"} 5\nsaker_store_read_bytes_total 10\n");
        let requests = BTreeMap::from([("open".to_owned(), 5)]);
        assert_eq!(after.since(&before), Counts { requests, store_read_bytes: 10 });
    }
}
