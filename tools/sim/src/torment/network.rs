//! Faults of the network: rules of nftables for the packets of one process, or for all.
//!
//! A process is known by its local ports. A connection that it makes anew is followed after some
//! milliseconds. Packets are harmed where they arrive: who sends them hears of nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::shell::CommandShell;

const TABLE: &str = "inet torment";

/// What happens to packets.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// They are lost, both to the victim and from it.
    Part,
    /// Those to the victim are lost.
    Deafen,
    /// Those from the victim are lost.
    Mute,
    /// So many percent of the victim's are lost.
    Lose(usize),
    /// So many percent of everybody's are lost.
    LoseAll(usize),
    /// Those of the victim are answered by a reset, to their sender.
    Reset,
}

/// Rules that are in force until they are lifted.
pub struct NetworkRules {
    pid: i32,
    ports: BTreeSet<u16>,
    /// For what the rules have done.
    list: PathBuf,
}

impl NetworkRules {
    /// Does harm to a process; `scratch` is a directory for files of ours.
    pub fn impose(shell: &mut CommandShell, scratch: &Path, pid: i32, harm: Harm) -> NetworkRules {
        let (to, from) = ("tcp dport @victim", "tcp sport @victim");
        let rules = match harm {
            Harm::Part => vec![format!("{to} counter drop"), format!("{from} counter drop")],
            Harm::Deafen => vec![format!("{to} counter drop")],
            Harm::Mute => vec![format!("{from} counter drop")],
            Harm::Lose(percent) => {
                let lost = format!("numgen random mod 100 < {percent} counter drop");
                vec![format!("{to} {lost}"), format!("{from} {lost}")]
            }
            Harm::LoseAll(percent) => {
                vec![format!("numgen random mod 100 < {percent} counter drop")]
            }
            Harm::Reset => {
                let reset = "counter reject with tcp reset";
                vec![format!("{to} {reset}"), format!("{from} {reset}")]
            }
        };
        let table = format!(
            "table {TABLE} {{ set victim {{ type inet_service; }}; \
             chain arriving {{ type filter hook input priority 0; {}; }}; }}",
            rules.join("; ")
        );
        let mut imposed = NetworkRules { pid, ports: BTreeSet::new(), list: scratch.join("rules") };
        nft(shell, &table);
        imposed.follow(shell);
        imposed
    }

    /// Takes note of the ports that the process has now.
    pub fn follow(&mut self, shell: &mut CommandShell) {
        let ports = ports_of(self.pid);
        if ports == self.ports || ports.is_empty() {
            return;
        }
        let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        nft(shell, &format!("flush set {TABLE} victim; add element {TABLE} victim {{ {list} }}"));
        self.ports = ports;
    }

    /// All is well again; how many packets were harmed.
    pub fn lift(self, shell: &mut CommandShell) -> u64 {
        let list = format!("nft list table {TABLE} >{}", self.list.display());
        shell.run(&["sh".as_ref(), "-c".as_ref(), list.as_ref()]);
        nft(shell, &format!("delete table {TABLE}"));
        let said = std::fs::read_to_string(&self.list).expect("it was written just now");
        packets(&said)
    }
}

fn nft(shell: &mut CommandShell, command: &str) {
    shell.run(&["nft".as_ref(), command.as_ref()]);
}

/// Sum of all counters in a list of rules.
fn packets(list: &str) -> u64 {
    let words: Vec<&str> = list.split_whitespace().collect();
    let counts = words.windows(2).filter(|pair| pair[0] == "packets");
    counts.filter_map(|pair| pair[1].parse::<u64>().ok()).sum()
}

/// Local ports of a process: it has their sockets among its descriptors.
fn ports_of(pid: i32) -> BTreeSet<u16> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: BTreeSet<u64> = descriptors
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok())
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let mine = table.lines().filter_map(port_and_inode);
    mine.filter(|(_, inode)| sockets.contains(inode)).map(|(port, _)| port).collect()
}

/// Local port and inode in a line of `/proc/net/tcp` (proc_net_tcp.txt of the kernel's documents);
/// none: it is no socket, or nobody's.
fn port_and_inode(line: &str) -> Option<(u16, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.split_once(':')?;
    let inode = words.get(9)?.parse().ok()?;
    Some((u16::from_str_radix(port, 16).ok()?, inode)).filter(|(_, inode)| *inode != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_this_process_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = listener.local_addr().expect("it is bound").port();
        let own = std::process::id() as i32;
        assert!(ports_of(own).contains(&port));
        drop(listener);
        assert!(!ports_of(own).contains(&port));
    }

    #[test]
    fn counters_are_summed() {
        let list = "chain arriving {\n tcp dport @victim counter packets 12 bytes 700 drop\n \
                    tcp sport @victim counter packets 3 bytes 180 drop\n}";
        assert_eq!(packets(list), 15);
    }
}
