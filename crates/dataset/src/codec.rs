//! Compression of blocks.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// How a file's blocks are compressed. A block that is not smaller for it is stored as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    #[default]
    None,
    /// LZ4 block format.
    Lz4,
    /// A Zstandard frame for each block, at this level (which readers need not know).
    Zstd(i32),
}

/// What `zstd` without a level means.
const ZSTD_LEVEL: i32 = 3;

impl Codec {
    pub(crate) fn to_u8(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Lz4 => 1,
            Codec::Zstd(_) => 2,
        }
    }

    pub(crate) fn from_u8(code: u8) -> Option<Codec> {
        Some(match code {
            0 => Codec::None,
            1 => Codec::Lz4,
            2 => Codec::Zstd(ZSTD_LEVEL),
            _ => return None,
        })
    }

    /// A block as it is stored: compressed, if that makes it smaller.
    pub(crate) fn compress(self, raw: &[u8]) -> std::io::Result<Cow<'_, [u8]>> {
        let small = match self {
            Codec::None => return Ok(Cow::Borrowed(raw)),
            Codec::Lz4 => lz4_flex::block::compress(raw),
            Codec::Zstd(level) => zstd::bulk::compress(raw, level)?,
        };
        Ok(if small.len() < raw.len() { Cow::Owned(small) } else { Cow::Borrowed(raw) })
    }

    /// The block again, which has `len` bytes.
    ///
    /// # Errors
    /// Words, if it is no such block.
    pub(crate) fn expand(self, stored: &[u8], len: usize) -> Result<Cow<'_, [u8]>, String> {
        if stored.len() == len {
            return Ok(Cow::Borrowed(stored));
        }
        let raw = match self {
            Codec::None => return Err(format!("{} bytes where {len} are due", stored.len())),
            Codec::Lz4 => lz4_flex::block::decompress(stored, len).map_err(|e| e.to_string())?,
            Codec::Zstd(_) => zstd::bulk::decompress(stored, len).map_err(|e| e.to_string())?,
        };
        if raw.len() == len {
            return Ok(Cow::Owned(raw));
        }
        Err(format!("{} bytes where {len} are due", raw.len()))
    }
}

impl FromStr for Codec {
    type Err = String;

    /// `none`, `lz4`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Codec, String> {
        match text {
            "none" => return Ok(Codec::None),
            "lz4" => return Ok(Codec::Lz4),
            "zstd" => return Ok(Codec::Zstd(ZSTD_LEVEL)),
            _ => {}
        }
        let levels = zstd::compression_level_range();
        let level = text.strip_prefix("zstd:").and_then(|level| level.parse().ok());
        match level.filter(|level| *level != 0 && levels.contains(level)) {
            Some(level) => Ok(Codec::Zstd(level)),
            None => Err(format!(
                "{text:?} is no compression: none, lz4, zstd or zstd:LEVEL with a level up to {}",
                levels.end()
            )),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::None => f.write_str("none"),
            Codec::Lz4 => f.write_str("lz4"),
            Codec::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back() {
        let text = b"a file like many others. ".repeat(1000);
        let noise: Vec<u8> =
            (0..5000u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect();
        for codec in ["none", "lz4", "zstd", "zstd:19", "zstd:-5"] {
            let codec: Codec = codec.parse().unwrap();
            for raw in [&text[..], &noise, b"", b"x"] {
                let stored = codec.compress(raw).unwrap().into_owned();
                assert!(stored.len() <= raw.len());
                assert_eq!(&*codec.expand(&stored, raw.len()).unwrap(), raw, "{codec}");
                if stored.len() < raw.len() {
                    assert!(codec.expand(&stored[1..], raw.len()).is_err());
                    assert!(codec.expand(&stored, raw.len() + 1).is_err());
                }
            }
            assert_eq!(codec.to_string().parse::<Codec>(), Ok(codec));
        }
        assert!(Codec::Lz4.compress(&text).unwrap().len() < 1000);
        for wrong in ["", "gzip", "zstd:", "zstd:99", "zstd:0", "lz4:3"] {
            assert!(wrong.parse::<Codec>().is_err(), "{wrong}");
        }
    }
}
