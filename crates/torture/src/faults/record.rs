//! The error record that a volume keeps of a failure.

use crate::Image;
use extant_format::jbd2::JournalSuperblock;
use extant_format::{STATE_ERROR, Superblock};

/// The offset of the superblock, in bytes.
const SUPERBLOCK_AT: usize = 1024;

/// Whether the superblock records errors.
pub(super) fn has_errors(image: &Image) -> bool {
    Superblock::parse(&image.to_vec()[SUPERBLOCK_AT..])
        .is_ok_and(|sb| sb.raw().s_state.get() & STATE_ERROR != 0)
}

/// The same volume without its error record.
///
/// With the record, e2fsck would handle orphans in a full check, which may repair anything. Without
/// it, the result of a failure can be judged like that of a crash. `journal_at`: offset of the
/// journal's superblock, in bytes.
pub(super) fn without_record(image: &Image, journal_at: Option<u64>) -> Image {
    let mut bytes = image.to_vec();
    if let Ok(mut sb) = Superblock::parse(&bytes[SUPERBLOCK_AT..]) {
        let raw = sb.raw_mut();
        raw.s_state = (raw.s_state.get() & !STATE_ERROR).into();
        raw.s_error_count = 0.into();
        sb.update_checksum();
        bytes[SUPERBLOCK_AT..][..sb.as_bytes().len()].copy_from_slice(sb.as_bytes());
    }
    if let Some(at) = journal_at
        && let Ok(mut journal) = JournalSuperblock::parse(&bytes[at as usize..])
    {
        journal.set_errno(0);
        journal.write_to(&mut bytes[at as usize..][..1024]);
    }
    Image::new(bytes.into())
}
