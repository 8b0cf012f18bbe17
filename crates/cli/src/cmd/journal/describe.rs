//! What a change says, for people.

use bytes::Bytes;
use prost::Message;
use saker_types::change::{Change, What, parse_entry_key, parse_slot_key, table};
use saker_types::id::hex;
use saker_types::{FileKind, Inode, InodeId};
use serde::Serialize;

/// A change, as it is printed.
#[derive(Default, Serialize)]
pub struct Described {
    /// What it does: put, delete, or a fact's name.
    pub what: &'static str,
    /// Of a row: which table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<&'static str>,
    /// Of an entry: the directory's inode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<InodeId>,
    /// Of an entry; bytes that are no text are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The inode that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode: Option<InodeId>,
    /// Of an inode's row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Of an inode's row: bytes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Says what an encoded change does.
pub fn describe(change: &Bytes) -> Described {
    let fact = |what| Described { what, ..Described::default() };
    let Ok(change) = Change::decode(change.clone()) else { return fact("unreadable") };
    match change.what {
        Some(What::Put(row)) => {
            let row_of_inode = is_inode_row(&row.key);
            let inode = row_of_inode.then(|| Inode::decode(row.value).ok()).flatten();
            let described = of_key("put", &row.key);
            match inode {
                None => described,
                Some(Inode { attr, .. }) => Described {
                    inode: Some(attr.id),
                    kind: Some(kind_name(attr.kind())),
                    size: Some(attr.size),
                    ..described
                },
            }
        }
        Some(What::Delete(key)) => of_key("delete", &key),
        Some(What::Result(_)) => fact("result of a request"),
        Some(What::SessionOpen(_)) => fact("session begins"),
        Some(What::SessionClose(_)) => fact("session ends"),
        Some(What::Prepared(prepared)) => {
            Described { inode: prepared.row.map(|row| row.attr.id), ..fact("transaction prepared") }
        }
        Some(What::PreparedEnd(_)) => fact("transaction ends here"),
        Some(What::Decision(_)) => fact("transaction commits"),
        Some(What::DecisionEnd(_)) => fact("transaction is over"),
        Some(What::IdsReserved(_)) => fact("inode numbers reserved"),
        Some(What::IdsTold(_)) => fact("inode numbers told"),
        Some(What::Inodes(_)) => fact("count of inodes"),
        Some(What::Map(_)) => fact("cluster map"),
        Some(What::Joined(_)) => fact("node joined"),
        Some(What::Marked(_)) => fact("node's mark"),
        Some(What::Policy(_)) => fact("policy"),
        Some(What::PolicyEnd(_)) => fact("policy ends"),
        None => fact("unknown to this version"),
    }
}

fn is_inode_row(key: &[u8]) -> bool {
    matches!(key.first(), Some(&table::ENTRY | &table::ATTR))
}

fn of_key(what: &'static str, key: &[u8]) -> Described {
    let table = match key.first() {
        Some(&table::ENTRY) => "entry",
        Some(&table::ATTR) => "attributes",
        Some(&table::GONE) => "gone",
        Some(&table::JOB) => "store job",
        Some(&table::TOTALS) => "totals",
        Some(&table::SHARE) => "share of totals",
        Some(&table::LOCKS) => "locks",
        Some(&table::STAGED) => "staged",
        Some(&table::BASE) => "base",
        Some(&table::BASE_ID) => "base inode",
        Some(&table::MERGING) => "merging",
        Some(&table::MERGE) => "merge",
        Some(&table::IDS) => "inode numbers",
        _ => "unknown",
    };
    let described = Described { what, table: Some(table), ..Described::default() };
    if let Some(entry) = parse_entry_key(key) {
        let name = Some(String::from_utf8_lossy(&entry.name).into_owned());
        return Described { parent: Some(entry.pid), name, ..described };
    }
    if let Some((_, id)) = parse_slot_key(key) {
        return Described { inode: Some(id), ..described };
    }
    match key.get(1..).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes) {
        Some(id) => Described { inode: Some(id), ..described },
        None => Described { name: Some(hex(key)), ..described },
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}
