//! Time stamps of inodes and superblocks (kernel document: *Inode Timestamps*).

use crate::UintExt;
use std::fmt;
use zerocopy::little_endian::U32;

/// Seconds since 1970 and nanoseconds.
///
/// An inode stores 34 bits of seconds (1901 to 2446) if it has room for the extra field, otherwise
/// 32 (to 2038).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

impl Timestamp {
    /// Earliest second that an extra field can express.
    pub const MIN_SECONDS: i64 = i32::MIN as i64;
    /// Latest second that an extra field can express.
    pub const MAX_SECONDS: i64 = i32::MAX as i64 + (3 << 32);

    /// From a base field and its extra field, whose low two bits extend the seconds and whose other
    /// bits are nanoseconds.
    pub fn from_raw(base: U32, extra: Option<U32>) -> Self {
        let seconds = base.get().cast_signed().into();
        match extra {
            None => Self { seconds, nanos: 0 },
            Some(extra) => Self {
                seconds: seconds + (i64::from(extra.get() & 3) << 32),
                // The field can hold more than a second; the kernel would return it unchanged.
                nanos: (extra.get() >> 2).min(999_999_999),
            },
        }
    }

    /// Earliest and latest second that an inode of this many bytes can store; with 128 there is no
    /// room for the two extra bits.
    pub fn seconds_range(inode_bytes: u16) -> (i64, i64) {
        match inode_bytes {
            ..=128 => (i32::MIN.into(), i32::MAX.into()),
            _ => (Self::MIN_SECONDS, Self::MAX_SECONDS),
        }
    }

    /// Base and extra field for this time, clamped to their range.
    pub fn to_raw(self) -> (U32, U32) {
        let seconds = self.seconds.clamp(Self::MIN_SECONDS, Self::MAX_SECONDS);
        let base = seconds.cast_unsigned().low_u32();
        let epoch = ((seconds - i64::from(base.cast_signed())) >> 32).cast_unsigned().low_u32() & 3;
        (U32::new(base), U32::new(self.nanos << 2 | epoch))
    }

    /// From a superblock's 40-bit seconds.
    pub fn from_superblock(lo: U32, hi: u8) -> Self {
        Self { seconds: i64::from(hi) << 32 | i64::from(lo.get()), nanos: 0 }
    }
}

/// Prints the time in UTC.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds.div_euclid(86_400), self.seconds.rem_euclid(86_400));
        // Civil date from days, after Howard Hinnant, "chrono-Compatible Low-Level Date
        // Algorithms".
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
        let year = yoe + era * 400 + i64::from(month <= 2);
        let (h, m, s) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}")?;
        if self.nanos > 0 { write!(f, ".{:09} UTC", self.nanos) } else { f.write_str(" UTC") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expressible_second_survives() {
        for seconds in
            [Timestamp::MIN_SECONDS, -1, 0, 1, i32::MAX as i64, 1 << 31, 1 << 32, Timestamp::MAX_SECONDS]
        {
            let time = Timestamp { seconds, nanos: 999_999_999 };
            let (base, extra) = time.to_raw();
            assert_eq!(Timestamp::from_raw(base, Some(extra)), time);
        }
    }

    #[test]
    fn prints_civil_dates() {
        let show = |seconds| Timestamp { seconds, nanos: 0 }.to_string();
        assert_eq!(show(1_582_934_400), "2020-02-29 00:00:00 UTC");
        assert_eq!(show(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(show(-1), "1969-12-31 23:59:59 UTC");
        assert_eq!(show(15_032_385_535), "2446-05-10 22:38:55 UTC");
    }
}
