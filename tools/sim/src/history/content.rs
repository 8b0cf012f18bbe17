//! Contents of files that tell where each of their bytes comes from: records of 16 bytes, each
//! with the tag of the write and its own place in the file.

/// Bytes of a record; all sizes and offsets are multiples of it.
pub const RECORD_BYTES: u64 = 16;
/// Tag of bytes that no write has written.
const ZEROS: u64 = 0;
/// Tag of bytes that no write can have written there.
const GARBAGE: u64 = u64::MAX;

/// Bytes of one write, up to where the next piece begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentPiece {
    /// Of the write.
    pub tag: u64,
    /// Byte after its last.
    pub end: u64,
}

/// What a file holds: pieces without a gap from 0 on, neighbours with different tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileContent(Vec<ContentPiece>);

impl FileContent {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.last().map_or(0, |piece| piece.end)
    }

    /// Nothing?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Cuts, or adds zeros.
    pub fn resize(&mut self, len: u64) {
        let kept = self.0.iter().take_while(|piece| piece.end < len).count();
        match self.0.get_mut(kept) {
            Some(piece) => {
                piece.end = len;
                self.0.truncate(kept + 1);
            }
            None => self.push(ZEROS, len),
        }
        if len == 0 {
            self.0.clear();
        }
    }

    /// Writes `len` bytes of `tag` at `offset`.
    pub fn write(&mut self, tag: u64, offset: u64, len: u64) {
        let behind = self.0.iter().filter(|piece| piece.end > offset + len);
        let behind: Vec<ContentPiece> = behind.copied().collect();
        self.resize(offset);
        self.push(tag, offset + len);
        behind.iter().for_each(|piece| self.push(piece.tag, piece.end));
    }

    fn push(&mut self, tag: u64, end: u64) {
        if end <= self.len() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.tag == tag => last.end = end,
            _ => self.0.push(ContentPiece { tag, end }),
        }
    }
}

/// The bytes of a write.
pub fn text(tag: u64, offset: u64, len: u64) -> Vec<u8> {
    let places = (offset..offset + len).step_by(RECORD_BYTES as usize);
    places.flat_map(|at| [tag.to_le_bytes(), at.to_le_bytes()].concat()).collect()
}

/// What these bytes, read from the start of a file, are.
pub fn parse(bytes: &[u8]) -> FileContent {
    let mut content = FileContent::default();
    for (n, record) in bytes.chunks(RECORD_BYTES as usize).enumerate() {
        let at = n as u64 * RECORD_BYTES;
        content.push(tag_of(record, at), at + record.len() as u64);
    }
    content
}

fn tag_of(record: &[u8], at: u64) -> u64 {
    let Some((tag, place)) = record.split_at_checked(8) else { return GARBAGE };
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
    match (number(tag), number(place)) {
        (Ok(ZEROS), Ok(0)) => ZEROS,
        (Ok(tag), Ok(place)) if tag != ZEROS && place == at => tag,
        _ => GARBAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Random;

    #[test]
    fn what_is_written_is_parsed() {
        let mut rng = Random::new(3);
        for _ in 0..300 {
            let (mut content, mut bytes) = (FileContent::default(), Vec::new());
            for tag in 1..8 {
                let [offset, len] = [0; 2].map(|_| rng.below(6) as u64 * RECORD_BYTES);
                if rng.chance(30) {
                    content.resize(len);
                    bytes.resize(len as usize, 0);
                } else if len > 0 {
                    content.write(tag, offset, len);
                    bytes.resize(bytes.len().max((offset + len) as usize), 0);
                    let (from, to) = (offset as usize, (offset + len) as usize);
                    bytes[from..to].copy_from_slice(&text(tag, offset, len));
                }
                assert_eq!(parse(&bytes), content);
                assert_eq!(bytes.len() as u64, content.len());
            }
        }
    }

    #[test]
    fn torn_and_misplaced_bytes_are_garbage() {
        let good = text(5, 0, 64);
        let garbage = |bytes: &[u8]| parse(bytes).0.iter().any(|piece| piece.tag == GARBAGE);
        assert!(!garbage(&good));
        assert!(garbage(&good[..40]), "a torn end");
        assert!(garbage(&good[16..]), "moved");
        let mut torn = good.clone();
        torn[20..32].fill(0);
        assert!(garbage(&torn), "half a record");
    }
}
