//! Extents of a chunk: which bytes of which record are where.

/// A run of a chunk's bytes in one record. Also the form in the index table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Extent {
    /// First byte within the chunk.
    #[prost(uint32, tag = "1")]
    pub off: u32,
    /// Bytes.
    #[prost(uint32, tag = "2")]
    pub len: u32,
    /// Segment that holds the record.
    #[prost(uint32, tag = "3")]
    pub segment: u32,
    /// Start of the record in the segment.
    #[prost(uint32, tag = "4")]
    pub pos: u32,
    /// Bytes of the record's header.
    #[prost(uint32, tag = "5")]
    pub head: u32,
    /// Bytes of the record's payload.
    #[prost(uint32, tag = "6")]
    pub payload: u32,
    /// Bytes of the payload before this run.
    #[prost(uint32, tag = "7")]
    pub skip: u32,
    /// Sequence number of the record: of two extents, the higher one covers the other.
    #[prost(uint64, tag = "8")]
    pub seq: u64,
    /// CRC32C of the record's payload; none in rows of versions that did not keep it.
    #[prost(fixed32, optional, tag = "9")]
    pub sum: Option<u32>,
}

impl Extent {
    /// First byte of the chunk behind it.
    pub fn end(&self) -> u32 {
        self.off + self.len
    }

    /// The part from `start` to `end` (bytes of the chunk, within the extent).
    pub fn part(&self, start: u32, end: u32) -> Extent {
        debug_assert!(self.off <= start && start < end && end <= self.end());
        Extent { off: start, len: end - start, skip: self.skip + (start - self.off), ..*self }
    }

    /// The checksum of its bytes, if it is all that its record has.
    pub fn whole_sum(&self) -> Option<u32> {
        self.sum.filter(|_| self.len == self.payload)
    }

    /// Does `next` go on where this ends, in the chunk as in the record?
    fn continues_in(&self, next: &Extent) -> bool {
        (self.segment, self.pos, self.end(), self.skip + self.len)
            == (next.segment, next.pos, next.off, next.skip)
    }

    /// Are these numbers possible?
    pub fn is_sound(&self) -> bool {
        self.len > 0
            && self.off.checked_add(self.len).is_some_and(|end| end <= CHUNK_BYTES)
            && self.skip.checked_add(self.len).is_some_and(|end| end <= self.payload)
            && self.payload <= CHUNK_BYTES
            && self.head as usize <= super::format::HEAD_BYTES_MAX
    }
}

const CHUNK_BYTES: u32 = saker_types::limits::CHUNK_BYTES as u32;

/// A chunk: sorted extents that do not overlap. Also the form in the index table.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Chunk {
    #[prost(message, repeated, tag = "1")]
    #[allow(missing_docs)]
    pub extents: Vec<Extent>,
}

/// Told how the live bytes of a segment change.
pub type OnLive<'a> = &'a mut dyn FnMut(u32, i64);

impl Chunk {
    /// End of the last byte written.
    pub fn end(&self) -> u32 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// Are the extents possible, sorted and apart?
    pub fn is_sound(&self) -> bool {
        self.extents.iter().all(Extent::is_sound)
            && self.extents.windows(2).all(|pair| pair[0].end() <= pair[1].off)
    }

    /// Adds an extent over older ones and under newer ones.
    pub fn insert(&mut self, new: Extent, live: OnLive<'_>) {
        let from = self.extents.partition_point(|e| e.end() <= new.off);
        let to = from + self.extents[from..].partition_point(|e| e.off < new.end());
        let mut placed = Vec::with_capacity(to - from + 2);
        let mut tail = None;
        let mut at = new.off;
        for old in &self.extents[from..to] {
            if old.seq >= new.seq {
                if at < old.off {
                    placed.push(new.part(at, old.off));
                }
                placed.push(*old);
                at = at.max(old.end());
                continue;
            }
            if old.off < new.off {
                placed.push(old.part(old.off, new.off));
            }
            if old.end() > new.end() {
                tail = Some(old.part(new.end(), old.end()));
            }
        }
        if at < new.end() {
            placed.push(new.part(at, new.end()));
        }
        placed.extend(tail);
        self.extents[from..to].iter().for_each(|e| live(e.segment, -i64::from(e.len)));
        placed.iter().for_each(|e| live(e.segment, i64::from(e.len)));
        let placed_len = placed.len();
        self.extents.splice(from..to, placed);
        self.merge(from, from + placed_len);
    }

    /// Joins neighbours in and around `from..to` that belong together.
    fn merge(&mut self, from: usize, to: usize) {
        let mut at = from.max(1);
        let mut to = (to + 1).min(self.extents.len());
        while at < to {
            let (before, next) = (self.extents[at - 1], self.extents[at]);
            if before.continues_in(&next) {
                self.extents[at - 1].len += next.len;
                self.extents.remove(at);
                to -= 1;
            } else {
                at += 1;
            }
        }
    }

    /// Drops all bytes from `len` on. Returns whether there were any.
    pub fn truncate(&mut self, len: u32, live: OnLive<'_>) -> bool {
        if self.end() <= len {
            return false;
        }
        let keep = self.extents.partition_point(|e| e.off < len);
        self.extents[keep..].iter().for_each(|e| live(e.segment, -i64::from(e.len)));
        self.extents.truncate(keep);
        if let Some(last) = self.extents.last_mut()
            && last.end() > len
        {
            live(last.segment, -i64::from(last.end() - len));
            last.len = len - last.off;
        }
        true
    }

    /// Drops the bytes from `start` up to `end`. Returns whether there were any.
    pub fn punch(&mut self, start: u32, end: u32, live: OnLive<'_>) -> bool {
        let from = self.extents.partition_point(|e| e.end() <= start);
        let to = from + self.extents[from..].partition_point(|e| e.off < end);
        let mut kept = Vec::with_capacity(2);
        for old in &self.extents[from..to] {
            live(old.segment, -i64::from(old.len));
            if old.off < start {
                kept.push(old.part(old.off, start));
            }
            if old.end() > end {
                kept.push(old.part(end, old.end()));
            }
        }
        kept.iter().for_each(|e| live(e.segment, i64::from(e.len)));
        self.extents.splice(from..to, kept);
        from < to
    }

    /// The first bytes at or behind `from` that follow each other without a hole.
    pub fn run(&self, from: u32) -> Option<(u32, u32)> {
        let first = self.extents.partition_point(|e| e.end() <= from);
        let start = self.extents.get(first)?.off.max(from);
        let apart = self.extents[first..].windows(2).find(|pair| pair[0].end() < pair[1].off);
        Some((start, apart.map_or(self.end(), |pair| pair[0].end())))
    }

    /// The parts of extents between two bytes of the chunk.
    pub fn range(&self, start: u32, end: u32) -> impl Iterator<Item = Extent> + '_ {
        let from = self.extents.partition_point(|e| e.end() <= start);
        self.extents[from..]
            .iter()
            .take_while(move |e| e.off < end)
            .map(move |e| e.part(e.off.max(start), e.end().min(end)))
    }

    /// Live bytes by segment.
    pub fn live(&self, live: OnLive<'_>) {
        self.extents.iter().for_each(|e| live(e.segment, i64::from(e.len)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use saker_runtime::rand::Rng;

    use super::*;

    /// One write of a random history: (seq, off, len).
    fn extent(seq: u64, off: u32, len: u32) -> Extent {
        let segment = (seq % 5) as u32;
        let (pos, sum) = (seq as u32 * 512, Some(seq as u32));
        Extent { off, len, segment, pos, head: 84, payload: len, skip: 0, seq, sum }
    }

    /// Which (seq, byte of its payload) is at each byte.
    fn flatten(chunk: &Chunk) -> Vec<Option<(u64, u32)>> {
        let mut bytes = vec![None; 128];
        for e in &chunk.extents {
            for i in 0..e.len {
                bytes[(e.off + i) as usize] = Some((e.seq, e.skip + i));
            }
        }
        bytes
    }

    #[test]
    fn any_order_of_arrival_gives_what_the_sequence_says() {
        for seed in 0..2_000 {
            let mut rng = Rng::seeded(seed);
            let mut writes: Vec<Extent> = (1..=8)
                .map(|seq| {
                    let off = rng.below(100) as u32;
                    extent(seq, off, 1 + rng.below(u64::from(128 - off).min(40)) as u32)
                })
                .collect();
            let mut model = vec![None; 128];
            for e in &writes {
                (0..e.len).for_each(|i| model[(e.off + i) as usize] = Some((e.seq, i)));
            }
            for i in (1..writes.len()).rev() {
                writes.swap(i, rng.below(i as u64 + 1) as usize);
            }
            let mut chunk = Chunk::default();
            let mut live: BTreeMap<u32, i64> = BTreeMap::new();
            // Some arrive twice, as in a replay.
            for e in writes.iter().chain(&writes[..3]) {
                chunk.insert(*e, &mut |s, d| *live.entry(s).or_default() += d);
            }
            assert_eq!(flatten(&chunk), model, "seed {seed}");
            assert!(chunk.is_sound());
            let cut = rng.below(128) as u32;
            chunk.truncate(cut, &mut |s, d| *live.entry(s).or_default() += d);
            model[cut as usize..].fill(None);
            assert_eq!(flatten(&chunk), model, "seed {seed} cut {cut}");
            let mut counted: BTreeMap<u32, i64> = BTreeMap::new();
            chunk.live(&mut |s, d| *counted.entry(s).or_default() += d);
            live.retain(|_, n| *n != 0);
            assert_eq!(live, counted, "seed {seed}");
        }
    }

    #[test]
    fn holes_and_runs_agree_with_a_byte_vector() {
        for seed in 0..2_000 {
            let mut rng = Rng::seeded(seed);
            let (mut chunk, mut model) = (Chunk::default(), vec![None; 128]);
            let mut live: BTreeMap<u32, i64> = BTreeMap::new();
            for seq in 1..=10 {
                let off = rng.below(100) as u32;
                let len = 1 + rng.below(u64::from(128 - off).min(40)) as u32;
                let mut on_live = |s, d| *live.entry(s).or_default() += d;
                if rng.chance(1, 3) {
                    let had = model[off as usize..(off + len) as usize].iter().any(Option::is_some);
                    assert_eq!(chunk.punch(off, off + len, &mut on_live), had, "seed {seed}");
                    model[off as usize..(off + len) as usize].fill(None);
                } else {
                    chunk.insert(extent(seq, off, len), &mut on_live);
                    (0..len).for_each(|i| model[(off + i) as usize] = Some((seq, i)));
                }
            }
            assert_eq!(flatten(&chunk), model, "seed {seed}");
            assert!(chunk.is_sound());
            let mut counted: BTreeMap<u32, i64> = BTreeMap::new();
            chunk.live(&mut |s, d| *counted.entry(s).or_default() += d);
            live.retain(|_, n| *n != 0);
            assert_eq!(live, counted, "seed {seed}");
            for from in 0..128 {
                let start = (from..128).find(|i| model[*i].is_some());
                let run = start.map(|start| {
                    let end = (start..128).find(|i| model[*i].is_none()).unwrap_or(128);
                    (start as u32, end as u32)
                });
                assert_eq!(chunk.run(from as u32), run, "seed {seed} from {from}");
            }
        }
    }

    #[test]
    fn neighbours_of_one_record_are_merged() {
        let mut chunk = Chunk::default();
        let mut ignore = |_: u32, _: i64| {};
        let whole = extent(1, 0, 100);
        for (start, end) in [(0, 10), (20, 30), (10, 20), (30, 100)] {
            chunk.insert(whole.part(start, end), &mut ignore);
        }
        assert_eq!(chunk.extents, [whole]);
        assert_eq!(chunk.range(5, 20).collect::<Vec<_>>(), [whole.part(5, 20)]);
        assert_eq!(chunk.range(0, 100).map(|e| e.whole_sum()).collect::<Vec<_>>(), [Some(1)]);
        chunk.insert(extent(2, 40, 10), &mut ignore);
        let sums: Vec<_> = chunk.extents.iter().map(Extent::whole_sum).collect();
        assert_eq!(sums, [None, Some(2), None]);
    }
}
