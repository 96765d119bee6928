//! The superblock's error record (kernel document: *Super Block*, `s_error_count` to
//! `s_last_error_func`, and `s_state`). Only a check of the volume clears it.

use super::{STATE_ERROR, Superblock};
use crate::UintExt;

/// Kind of an error, numbered as in the superblock (`EXT4_ERR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorCode {
    /// The device failed (`EIO`).
    Io = 2,
    /// A checksum is wrong (`EFSBADCRC`).
    Checksum = 4,
    /// A structure is damaged (`EFSCORRUPTED`).
    Corrupt = 5,
}

/// An error, as recorded in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecord<'a> {
    /// Time of detection, in seconds since 1970.
    pub seconds: i64,
    /// The inode concerned; 0 for none.
    pub inode: u32,
    /// The block concerned; 0 for none.
    pub block: u64,
    /// Where it was detected; Linux stores a function name. Truncated to 31 bytes.
    pub place: &'a str,
    /// Its kind.
    pub code: ErrorCode,
}

impl Superblock {
    /// Records an error: sets the error state (`s_state`), increments the count, keeps the first
    /// error, and replaces the last one. The caller calls [`Self::update_checksum`].
    pub fn record_error(&mut self, record: &ErrorRecord<'_>) {
        let raw = self.raw_mut();
        let mut func = [0; 32];
        let len = record.place.len().min(func.len() - 1);
        func[..len].copy_from_slice(&record.place.as_bytes()[..len]);
        let seconds = record.seconds.cast_unsigned();
        let (low, high) = (seconds.low_u32(), (seconds >> 32).low_u8());
        raw.s_state = (raw.s_state.get() | STATE_ERROR).into();
        if raw.s_error_count.get() == 0 {
            (raw.s_first_error_time, raw.s_first_error_time_hi) = (low.into(), high);
            (raw.s_first_error_ino, raw.s_first_error_block) = (record.inode.into(), record.block.into());
            (raw.s_first_error_func, raw.s_first_error_line) = (func, 0.into());
            raw.s_first_error_errcode = record.code as u8;
        }
        (raw.s_last_error_time, raw.s_last_error_time_hi) = (low.into(), high);
        (raw.s_last_error_ino, raw.s_last_error_block) = (record.inode.into(), record.block.into());
        (raw.s_last_error_func, raw.s_last_error_line) = (func, 0.into());
        raw.s_last_error_errcode = record.code as u8;
        raw.s_error_count = raw.s_error_count.get().saturating_add(1).into();
    }

    /// Copies the error record of `other`, another copy of the same superblock, if it has more
    /// errors: a copy replayed from the journal may be older than the record.
    pub fn keep_errors_of(&mut self, other: &Self) {
        let (other, raw) = (*other.raw(), self.raw_mut());
        raw.s_state = (raw.s_state.get() | (other.s_state.get() & STATE_ERROR)).into();
        if other.s_error_count.get() <= raw.s_error_count.get() {
            return;
        }
        raw.s_error_count = other.s_error_count;
        raw.s_first_error_time = other.s_first_error_time;
        raw.s_first_error_time_hi = other.s_first_error_time_hi;
        raw.s_first_error_ino = other.s_first_error_ino;
        raw.s_first_error_block = other.s_first_error_block;
        raw.s_first_error_func = other.s_first_error_func;
        raw.s_first_error_line = other.s_first_error_line;
        raw.s_first_error_errcode = other.s_first_error_errcode;
        raw.s_last_error_time = other.s_last_error_time;
        raw.s_last_error_time_hi = other.s_last_error_time_hi;
        raw.s_last_error_ino = other.s_last_error_ino;
        raw.s_last_error_block = other.s_last_error_block;
        raw.s_last_error_func = other.s_last_error_func;
        raw.s_last_error_line = other.s_last_error_line;
        raw.s_last_error_errcode = other.s_last_error_errcode;
    }
}
