//! What a journal says again at the start of a segment, in pieces: it may be as large as memory is.

use prost::Message;
use saker_types::change::{Change, Record, What};

/// A piece ends when it has this many bytes.
pub const PIECE_BYTES: usize = 4 << 20;

/// Encodes changes as records of about [`PIECE_BYTES`], of which there is at least one.
pub fn pieces(changes: impl Iterator<Item = What>) -> impl Iterator<Item = Vec<u8>> {
    let mut changes = changes.peekable();
    let mut begun = false;
    std::iter::from_fn(move || {
        if changes.peek().is_none() && std::mem::replace(&mut begun, true) {
            return None;
        }
        begun = true;
        let (mut record, mut bytes) = (Record::default(), 0);
        while let Some(what) = changes.next_if(|_| bytes < PIECE_BYTES) {
            bytes += weight(&what);
            record.changes.push(Change { what: Some(what) });
        }
        Some(record.encode_to_vec())
    })
}

/// Bytes of a change in a record, about; what clients can make large is counted.
pub fn weight(what: &What) -> usize {
    const SMALL: usize = 64;
    SMALL
        + match what {
            What::Put(row) => row.key.len() + row.value.len(),
            What::Delete(key) => key.len(),
            What::Result(result) => result.body.len(),
            What::Prepared(part) => part.encoded_len(),
            What::Map(map) => map.len(),
            What::Policy(policy) => policy.encoded_len(),
            What::SessionOpen(_)
            | What::SessionClose(_)
            | What::PreparedEnd(_)
            | What::Decision(_)
            | What::DecisionEnd(_)
            | What::IdsReserved(_)
            | What::IdsTold(_)
            | What::Marked(_)
            | What::Inodes(_)
            | What::PolicyEnd(_)
            | What::Joined(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use saker_types::change::StoredResult;

    use super::*;

    #[test]
    fn pieces_hold_everything_in_order() {
        let result = |seq| StoredResult { seq, body: vec![1; 5000].into(), ..Default::default() };
        let all: Vec<What> = (0..2400).map(|seq| What::Result(result(seq))).collect();
        let pieces: Vec<Vec<u8>> = pieces(all.iter().cloned()).collect();
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| piece.len() < PIECE_BYTES + 10_000));
        let records = pieces.iter().map(|piece| Record::decode(&piece[..]).unwrap());
        let again: Vec<What> =
            records.flat_map(|record| record.changes).filter_map(|change| change.what).collect();
        assert!(again == all);
        assert_eq!(super::pieces(std::iter::empty()).collect::<Vec<_>>(), [[0; 0]]);
    }
}
