//! Directories that were there before: read from their owners when something in them is needed
//! (Cudele section 3.3: the client works on a copy of what was there).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use saker_meta::private::RowPlace;
use saker_types::placement::Slot;
use saker_types::wire::{At, EntryKey, LoadReply, LoadReq, LoadedRow, Op};
use saker_types::{Errno, Error, Inode, InodeId, Locator, Result, ShardNo, Stamp, limits};

use super::Subtree;
use crate::Caller;
use crate::core::Core;
use crate::namespace::api::Namespace;
use crate::namespace::strict::Strict;
use crate::net::cluster;
use crate::net::request::To;

/// Directories whose times are asked for at once.
const TIMES_AT_ONCE: usize = 32;

impl Subtree {
    /// Loads the directories on the way to a place, and what is at its end if that is one.
    ///
    /// # Errors
    /// Those of reading them.
    pub(crate) async fn load_way(&self, at: &At) -> Result<()> {
        self.load(&at.anchor).await?;
        if self.dirs().unloaded.is_empty() {
            return Ok(());
        }
        let root = Caller::root();
        for names in 1..=at.path.len() {
            let way = At::below(at.anchor.clone(), at.path[..names].to_vec());
            // What is not there, or no directory, the operation itself says.
            let Ok(entry) = self.names().lookup(&root, &way).await else { return Ok(()) };
            if !entry.attr.is_dir() {
                return Ok(());
            }
            self.load(&entry.loc).await?;
        }
        Ok(())
    }

    /// Loads a directory, or the row of something else, unless it is. It may be one that somebody has come to
    /// before this client held the subtree, without the directories on the way.
    ///
    /// # Errors
    /// Those of reading it.
    pub(crate) async fn load(&self, dir: &Locator) -> Result<()> {
        if self.dirs().are_loaded(dir) {
            return Ok(());
        }
        let _loading = self.loading.lock().await;
        let parent = self.dirs().known.get(&dir.pid).cloned();
        if !self.dirs().known.contains_key(&dir.id) {
            match parent.filter(|_| dir.home_slot.is_none()) {
                Some(parent) => self.load_entries(&parent).await?,
                None => self.load_row(dir).await?,
            }
        }
        self.load_entries(dir).await
    }

    /// Loads what is at a handle, without its directory.
    async fn load_row(&self, loc: &Locator) -> Result<()> {
        let (core, holder) = (&self.upstream, self.holder());
        let shard = core.cluster.routes().map.shard_for(&At::handle(loc.clone()));
        let (at, homes) = (At::handle(self.root.clone()), vec![loc.clone()]);
        let mut request = LoadReq { at, homes, ..LoadReq::default() };
        let asked = core.cluster.ask(&holder, Op::Load, To::Shard(shard), &mut request).await;
        let reply: LoadReply = asked.map_err(|error| self.lost(error))?;
        // What is not there any more, the operation itself says.
        let Some(LoadedRow { mut row, .. }) = reply.rows.into_iter().next() else { return Ok(()) };
        let place = match loc.home_slot {
            Some(slot) => RowPlace::Attr { slot, id: loc.id },
            None => RowPlace::Entry(EntryKey { pid: loc.pid, name: loc.name.clone() }),
        };
        let is_dir = row.attr.is_dir();
        if is_dir {
            let place = self.under_policy(loc);
            if let Some(times) = times_of(core, &holder, &[place]).await?.get(&loc.id) {
                (row.attr.mtime_ns, row.attr.ctime_ns) = *times;
            }
        }
        let mut rows = vec![(place, row)];
        if let Some(slot) = rows[0].1.home_slot {
            let homes = BTreeMap::from([(loc.id, slot)]);
            rows.extend(homes_of(core, &holder, &self.root, homes).await?);
        }
        self.insert_all(rows).await?;
        let mut dirs = self.dirs();
        match is_dir {
            true => {
                dirs.unloaded.insert(loc.id);
                dirs.known.insert(loc.id, self.under_policy(loc));
            }
            false => _ = dirs.rows.insert(loc.id),
        }
        Ok(())
    }

    async fn load_entries(&self, dir: &Locator) -> Result<()> {
        let place = {
            let dirs = self.dirs();
            if !dirs.unloaded.contains(&dir.id) {
                return Ok(());
            }
            dirs.known.get(&dir.id).cloned()
        };
        // Where the cluster has it: it may have another name here.
        let place = self.under_policy(place.as_ref().unwrap_or(dir));
        let (core, holder) = (&self.upstream, self.holder());
        let rows = rows_of(core, &holder, &place).await.map_err(|error| self.lost(error))?;
        let mut below = Vec::new();
        let mut inserted = Vec::with_capacity(rows.len());
        for (at, row) in rows {
            if let (RowPlace::Entry(EntryKey { pid, name }), true) = (&at, row.attr.is_dir()) {
                let loc = self.under_policy(&Locator::entry(*pid, name.clone(), row.attr.id));
                // It has had another name since it was loaded, or is about to have one.
                let known =
                    self.dirs().known.get_mut(&loc.id).map(|it| std::mem::replace(it, loc.clone()));
                if known.is_some_and(|it| (it.pid, &it.name) != (loc.pid, &loc.name)) {
                    continue;
                }
                below.push(loc);
            }
            inserted.push((at, row));
        }
        let times = times_of(core, &holder, &below).await?;
        for (_, row) in inserted.iter_mut().filter(|(_, row)| row.attr.is_dir()) {
            if let Some((mtime_ns, ctime_ns)) = times.get(&row.attr.id) {
                (row.attr.mtime_ns, row.attr.ctime_ns) = (*mtime_ns, *ctime_ns);
            }
        }
        self.insert_all(inserted).await?;
        let mut dirs = self.dirs();
        dirs.unloaded.remove(&dir.id);
        for loc in below {
            // One of them may have been loaded before, by itself.
            if dirs.known.insert(loc.id, loc.clone()).is_none() {
                dirs.unloaded.insert(loc.id);
            }
        }
        Ok(())
    }

    /// Gives rows to the private servers. Of a subtree that goes on from a journal what was made here since is
    /// in the place of what others have made.
    async fn insert_all(&self, rows: Vec<(RowPlace, Inode)>) -> Result<()> {
        match self.servers.insert(rows.clone()).await {
            Err(error) if error.errno() == Errno::EEXIST => {}
            other => return other,
        }
        for row in rows {
            match self.servers.insert(vec![row]).await {
                Err(error) if error.errno() == Errno::EEXIST => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// The row of a subtree's root, with the times that the cluster shows.
pub(super) async fn root_row(core: &Arc<Core>, holder: &Caller, root: &Locator) -> Result<Inode> {
    let shard = core.cluster.routes().map.shard_for(&At::handle(root.clone()));
    let mut request = LoadReq { at: At::handle(root.clone()), limit: 1, ..LoadReq::default() };
    let reply: LoadReply =
        core.cluster.ask(holder, Op::Load, To::Shard(shard), &mut request).await?;
    let mut row = reply.dir.ok_or(Errno::ESTALE)?;
    let shown = Strict(core).getattr(holder, &At::handle(root.clone())).await?;
    (row.attr.mtime_ns, row.attr.ctime_ns) = (shown.attr.mtime_ns, shown.attr.ctime_ns);
    Ok(row)
}

/// All rows of a directory, and the attributes of files in it that have several names.
async fn rows_of(
    core: &Arc<Core>,
    holder: &Caller,
    dir: &Locator,
) -> Result<Vec<(RowPlace, Inode)>> {
    let shards = core.cluster.routes().map.shards.len();
    let shares = (0..shards).map(|shard| share_of(core, holder, dir, shard as ShardNo));
    let shares = cluster::all(shares).await?;
    let mut rows: Vec<(RowPlace, Inode)> = shares.into_iter().flatten().collect();
    let homes: BTreeMap<InodeId, u32> =
        rows.iter().filter_map(|(_, row)| row.home_slot.map(|slot| (row.attr.id, slot))).collect();
    rows.extend(homes_of(core, holder, dir, homes).await?);
    Ok(rows)
}

/// What one shard has of it.
async fn share_of(
    core: &Arc<Core>,
    holder: &Caller,
    dir: &Locator,
    shard: ShardNo,
) -> Result<Vec<(RowPlace, Inode)>> {
    let mut rows = Vec::new();
    let mut request = LoadReq { at: At::handle(dir.clone()), ..LoadReq::default() };
    loop {
        let reply: LoadReply =
            core.cluster.ask(holder, Op::Load, To::Shard(shard), &mut request).await?;
        if let Some(last) = reply.rows.last() {
            (request.after_order, request.after_name) = (last.order, last.name.clone());
        } else if !reply.end {
            let text = format!("shard {shard} sends nothing of a directory that goes on");
            return Err(Error::new(Errno::EPROTO).with_text(text));
        }
        rows.extend(reply.rows.into_iter().map(|loaded| {
            let entry = EntryKey { pid: dir.id, name: loaded.name };
            (RowPlace::Entry(entry), loaded.row)
        }));
        if reply.end {
            return Ok(rows);
        }
    }
}

/// Attribute rows of files with several names.
async fn homes_of(
    core: &Arc<Core>,
    holder: &Caller,
    dir: &Locator,
    known: BTreeMap<InodeId, u32>,
) -> Result<Vec<(RowPlace, Inode)>> {
    let map = core.cluster.routes().map.clone();
    let mut by_shard: BTreeMap<ShardNo, Vec<Locator>> = BTreeMap::new();
    for (id, slot) in &known {
        let shard = map.shard_of_slot(Slot::from_wire(*slot));
        let home = Locator { id: *id, home_slot: Some(*slot), ..Locator::default() };
        by_shard.entry(shard).or_default().push(home);
    }
    let mut rows = Vec::new();
    for (shard, mut homes) in by_shard {
        while !homes.is_empty() {
            let some = homes.split_off(homes.len().saturating_sub(limits::COMPONENTS_MAX));
            let asked = some.len();
            let mut request =
                LoadReq { at: At::handle(dir.clone()), homes: some, ..LoadReq::default() };
            let reply: LoadReply =
                core.cluster.ask(holder, Op::Load, To::Shard(shard), &mut request).await?;
            if !reply.end {
                // Those that did not fit are behind those that did.
                homes.extend(request.homes.drain(reply.rows.len().min(asked - 1)..));
            }
            rows.extend(reply.rows.into_iter().filter_map(|LoadedRow { row, .. }| {
                let (slot, id) = (known.get(&row.attr.id).copied()?, row.attr.id);
                Some((RowPlace::Attr { slot, id }, row))
            }));
        }
    }
    Ok(rows)
}

/// Times that the cluster shows of directories: mtime and ctime.
async fn times_of(
    core: &Arc<Core>,
    holder: &Caller,
    dirs: &[Locator],
) -> Result<HashMap<InodeId, (Stamp, Stamp)>> {
    let mut times = HashMap::new();
    for some in dirs.chunks(TIMES_AT_ONCE) {
        let asked = some
            .iter()
            .map(async |dir| Strict(core).getattr(holder, &At::handle(dir.clone())).await);
        for shown in join_all(asked).await {
            match shown {
                Ok(entry) => {
                    times.insert(entry.attr.id, (entry.attr.mtime_ns, entry.attr.ctime_ns));
                }
                // It was removed meanwhile by somebody who may.
                Err(error) if error.errno() == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(times)
}
