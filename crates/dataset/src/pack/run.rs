//! Packing the partitions of a dataset, one after the other.

use std::path::Path;
use std::sync::mpsc::sync_channel;

use super::objects::Objects;
use super::plan::Partitions;
use super::source::Source;
use super::{Options, Plan, Progress, progress, table_path, writer};
use crate::dataset::{PartitionInfo, partition_name, write_whole};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::partition::{Partition, bytes_of, digest_of};
use crate::table::Table;

/// A run of the packer.
pub(super) struct Run<'a> {
    source: &'a dyn Source,
    plan: &'a Plan,
    entries: Partitions,
    fingerprint: Digest,
    dir: &'a Path,
    options: &'a Options,
    progress: &'a Progress,
}

/// What has become of a partition.
enum Part {
    /// It is on the disk.
    Here(PartitionInfo),
    /// It is an object.
    Stored(PartitionInfo),
}

impl<'a> Run<'a> {
    pub(super) fn new(
        source: &'a dyn Source,
        plan: &'a Plan,
        dir: &'a Path,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Run<'a> {
        let (entries, fingerprint) =
            (plan.by_partition(options.partitions), plan.fingerprint(options));
        Run { source, plan, entries, fingerprint, dir, options, progress }
    }

    /// Makes all partitions that are not there yet. With `objects`, a partition becomes one while the
    /// next is packed.
    pub(super) fn partitions(&self, objects: Option<&dyn Objects>) -> Result<Vec<PartitionInfo>> {
        let numbers = 0..self.options.partitions;
        let Some(objects) = objects else {
            let parts = numbers.map(|number| match self.partition(number, None)? {
                Part::Here(info) | Part::Stored(info) => Ok(info),
            });
            return parts.collect();
        };
        std::thread::scope(|scope| {
            let (here, arrived) = sync_channel(0);
            let storing = scope.spawn(move || {
                let mut all = arrived.iter();
                all.try_for_each(|info: PartitionInfo| self.store(objects, &info))
            });
            let mut parts = Vec::new();
            let packed = numbers.into_iter().try_for_each(|number| {
                match self.partition(number, Some(objects))? {
                    Part::Stored(info) => parts.push(info),
                    Part::Here(info) => {
                        parts.push(info.clone());
                        // Who does not take it has failed, and says so below.
                        here.send(info).map_err(|_| Error::Interrupted)?;
                    }
                }
                Ok(())
            });
            drop(here);
            storing.join().expect("storing does not panic")?;
            packed.map(|()| parts)
        })
    }

    /// Makes a partition an object, of which its table stays here.
    fn store(&self, objects: &dyn Objects, info: &PartitionInfo) -> Result<()> {
        let path = self.dir.join(&info.name);
        objects.put(&info.digest, &path, info.stored)?;
        std::fs::remove_file(&path).map_err(|e| Error::io(&path, e))
    }

    fn partition(&self, number: u32, objects: Option<&dyn Objects>) -> Result<Part> {
        let path = self.dir.join(partition_name(number));
        let noted = progress::read(&progress::path_of(&path), self.fingerprint, |_| Ok(()))?;
        let mut part = None;
        if let Some((whole, end)) = noted.and_then(|noted| Some((noted.whole?, noted.end))) {
            part = self.finished(whole, number, &path);
            if let (None, Some(objects)) = (&part, objects)
                && let Some((info, table)) = self.table_of(whole, number, end, &path)
                && objects.has(&info.digest, info.stored)?
            {
                self.progress.add_earlier(&table);
                return Ok(Part::Stored(info));
            }
        }
        let part = match part {
            Some(part) => {
                self.progress.add_earlier(part.table());
                part
            }
            None => {
                let (fingerprint, path) = (self.fingerprint, &path);
                let target = writer::Target { fingerprint, number, path };
                let entries = self.entries.entries(number);
                writer::write(
                    self.source,
                    self.plan,
                    entries,
                    &target,
                    self.options,
                    self.progress,
                )?
            }
        };
        if objects.is_some() {
            write_whole(&table_path(&path), part.table().as_bytes())?;
        }
        Ok(Part::Here(PartitionInfo::of_partition(&part)))
    }

    /// A partition that an earlier run has finished, of this very plan.
    fn finished(&self, whole: Digest, number: u32, path: &Path) -> Option<Partition> {
        let part = Partition::open(path).ok()?;
        let is_it = (part.number, part.of) == (number, self.options.partitions);
        (is_it && part.digest == whole && part.verify().is_ok()).then_some(part)
    }

    /// The table of a partition that an earlier run has made an object, and what the partition is.
    fn table_of(
        &self,
        whole: Digest,
        number: u32,
        end: u64,
        path: &Path,
    ) -> Option<(PartitionInfo, Table)> {
        let table = Table::open(&table_path(path)).ok()?;
        let is_it = digest_of(number, self.options.partitions, &table) == whole;
        let info = PartitionInfo::of(number, whole, bytes_of(end, &table), &table);
        (is_it && table.verify().is_ok()).then_some((info, table))
    }
}
