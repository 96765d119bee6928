//! How to open an image for reading.

use crate::values;

/// How to open an image for reading.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ImageArgs {
    /// Use a superblock other than the first, which is at byte 1024: auto (a backup, if the first
    /// is damaged), block:N, or a byte, as `info` lists backups
    #[arg(long, value_name = "auto|block:N|BYTE", value_parser = SuperblockAt::parse)]
    pub(crate) superblock: Option<SuperblockAt>,

    /// Read the volume without replaying its journal
    #[arg(long)]
    pub(crate) ignore_journal: bool,
}

/// Which superblock to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuperblockAt {
    /// The first one, or the first sound backup, even if the image begins with something else.
    Auto,
    /// The one at this byte.
    Byte(u64),
    /// The one in this block, whose size is the superblock's own.
    Block(u64),
}

impl SuperblockAt {
    /// The byte, if the user gave one.
    pub(crate) fn byte(self) -> Option<u64> {
        match self {
            Self::Byte(at) => Some(at),
            Self::Auto | Self::Block(_) => None,
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let told = "it is auto, a block as in block:32768, or a byte as in 134217728 or 128M";
        match text.to_ascii_lowercase().strip_prefix("block") {
            Some(number) => {
                let number = number.trim_start_matches([':', ' ', '=']).parse();
                number.map(Self::Block).map_err(|_| told.to_owned())
            }
            None if text.eq_ignore_ascii_case("auto") => Ok(Self::Auto),
            None => values::size(text).map(Self::Byte).map_err(|_| told.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SuperblockAt::{self, Auto, Block, Byte};

    #[test]
    fn a_superblock_has_a_place() {
        for (text, at) in [
            ("auto", Auto),
            ("block:32768", Block(32768)),
            ("BLOCK 8193", Block(8193)),
            ("134217728", Byte(134_217_728)),
            ("128M", Byte(128 << 20)),
        ] {
            assert_eq!(SuperblockAt::parse(text), Ok(at), "{text}");
        }
        for text in ["", "block", "block:-1", "first", "+1"] {
            assert!(SuperblockAt::parse(text).is_err(), "{text}");
        }
    }
}
