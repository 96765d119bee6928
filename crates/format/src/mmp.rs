//! The multiple-mount-protection block: who uses the volume, and until when others must stay away.
//!
//! Kernel documentation: *Multiple Mount Protection* (Documentation/filesystems/ext4/mmp.rst).

use crate::{ChecksumSeed, Corrupt, Place, Problem, VolumeBlock};
use std::fmt;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `EXT4_MMP_MAGIC`.
pub const MMP_MAGIC: u32 = 0x004d_4d50;
/// Size of the structure in bytes.
pub const MMP_BYTES: usize = size_of::<RawMmp>();
/// The largest sequence of a mounted volume, `EXT4_MMP_SEQ_MAX`.
pub const MMP_SEQUENCE_MAX: u32 = 0xe24d_4d4f;
const SEQUENCE_CLEAN: u32 = 0xff4d_4d50;
const SEQUENCE_FSCK: u32 = 0xe24d_4d50;

/// `struct mmp_struct`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawMmp {
    /// 0x0: 0x004d4d50.
    pub mmp_magic: U32,
    /// 0x4: see [`MmpState`].
    pub mmp_seq: U32,
    /// 0x8: last update, seconds since 1970.
    pub mmp_time: U64,
    /// 0x10: host name, NUL-terminated.
    pub mmp_nodename: [u8; 64],
    /// 0x50: device name, NUL-terminated.
    pub mmp_bdevname: [u8; 32],
    /// 0x70: check interval in seconds.
    pub mmp_check_interval: U16,
    /// 0x72.
    pub mmp_pad1: U16,
    /// 0x74.
    pub mmp_pad2: [U32; 226],
    /// 0x3fc: with `metadata_csum`, checksum of everything before.
    pub mmp_checksum: U32,
}

/// The state recorded in `mmp_seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpState {
    /// The volume is not in use.
    Clean,
    /// In use by a checker, which does not count.
    Checking,
    /// Mounted by a host, which increments the sequence.
    Mounted(u32),
}

/// A multiple-mount-protection block.
#[derive(Clone, Debug)]
pub struct Mmp {
    raw: RawMmp,
    state: MmpState,
    place: Place,
}

impl Mmp {
    /// A block for a volume that is not in use; `interval_s` is the check interval in seconds.
    pub fn clean(number: VolumeBlock, interval_s: u16) -> Self {
        let mut raw = RawMmp::new_zeroed();
        raw.mmp_magic = MMP_MAGIC.into();
        raw.mmp_seq = SEQUENCE_CLEAN.into();
        raw.mmp_check_interval = interval_s.into();
        Self { raw, state: MmpState::Clean, place: Place::Mmp(number) }
    }

    /// Parses block `number`.
    ///
    /// # Errors
    /// Too few bytes, another magic number, or an unknown sequence number.
    pub fn parse(block: &[u8], number: VolumeBlock) -> Result<Self, Corrupt> {
        let place = Place::Mmp(number);
        let Ok((raw, _)) = RawMmp::read_from_prefix(block) else {
            return Err(Corrupt::truncated(place, MMP_BYTES, block.len()));
        };
        let found = raw.mmp_magic.get();
        if found != MMP_MAGIC {
            return Err(Corrupt { place, problem: Problem::Magic { found, expected: MMP_MAGIC } });
        }
        let state = match raw.mmp_seq.get() {
            SEQUENCE_CLEAN => MmpState::Clean,
            SEQUENCE_FSCK => MmpState::Checking,
            sequence @ 0..=MMP_SEQUENCE_MAX => MmpState::Mounted(sequence),
            other => {
                return Err(Corrupt::field(place, "mmp_seq", other.into(), "a count, clean or checking"));
            }
        };
        Ok(Self { raw, state, place })
    }

    /// Checks the checksum on a volume with `metadata_csum`.
    ///
    /// # Errors
    /// Another checksum.
    pub fn verify_checksum(&self, seed: ChecksumSeed) -> Result<(), Corrupt> {
        let (stored, computed) = (self.raw.mmp_checksum.get(), self.checksum(seed));
        if stored == computed { Ok(()) } else { Err(Corrupt::checksum(self.place, stored, computed)) }
    }

    fn checksum(&self, seed: ChecksumSeed) -> u32 {
        seed.over(&self.raw.as_bytes()[..offset_of!(RawMmp, mmp_checksum)]).0
    }

    /// How the volume is in use.
    pub fn state(&self) -> MmpState {
        self.state
    }

    /// Time of the last update, seconds since 1970.
    pub fn updated(&self) -> u64 {
        self.raw.mmp_time.get()
    }

    /// Maximum interval between updates, in seconds.
    pub fn check_interval_s(&self) -> u16 {
        self.raw.mmp_check_interval.get()
    }

    /// Name of the host that wrote the block.
    pub fn host(&self) -> &[u8] {
        until_nul(&self.raw.mmp_nodename)
    }

    /// Name of the device on that host.
    pub fn device(&self) -> &[u8] {
        until_nul(&self.raw.mmp_bdevname)
    }

    /// Returns the block with another state, written at `time`, in seconds since 1970.
    #[must_use]
    pub fn with_state(mut self, state: MmpState, time: u64) -> Self {
        self.raw.mmp_seq = match state {
            MmpState::Clean => SEQUENCE_CLEAN,
            MmpState::Checking => SEQUENCE_FSCK,
            MmpState::Mounted(sequence) => sequence.min(MMP_SEQUENCE_MAX),
        }
        .into();
        self.raw.mmp_time = time.into();
        self.state = state;
        self
    }

    /// Returns the block with a user's names, truncated to the length of their fields; the user
    /// updates it at least every `interval_s` seconds.
    #[must_use]
    pub fn with_user(mut self, host: &[u8], device: &[u8], interval_s: u16) -> Self {
        fill(&mut self.raw.mmp_nodename, host);
        fill(&mut self.raw.mmp_bdevname, device);
        self.raw.mmp_check_interval = interval_s.into();
        self
    }

    /// Writes it to the start of `block`; `seed` is given on a volume with `metadata_csum`.
    ///
    /// # Panics
    /// If the block is shorter than 1024 bytes.
    pub fn write_to(&self, block: &mut [u8], seed: Option<ChecksumSeed>) {
        let mut raw = self.raw;
        raw.mmp_checksum = seed.map_or(0, |seed| self.checksum(seed)).into();
        block[..MMP_BYTES].copy_from_slice(raw.as_bytes());
    }
}

/// Stores a name, NUL-terminated and padded with zeros.
fn fill(field: &mut [u8], name: &[u8]) {
    let len = name.len().min(field.len() - 1);
    field.fill(0);
    field[..len].copy_from_slice(&name[..len]);
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

impl fmt::Display for Mmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            MmpState::Clean => f.write_str("not in use")?,
            MmpState::Checking => f.write_str("in use by a checker")?,
            MmpState::Mounted(sequence) => write!(f, "in use, count {sequence}")?,
        }
        let (host, device) = (self.host().escape_ascii(), self.device().escape_ascii());
        write!(
            f,
            ", written at {} by {host} as {device}, every {} s",
            self.updated(),
            self.check_interval_s()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: &[u8; 1024] = include_bytes!("../tests/data/mmp_e2fsprogs.bin");
    const NUMBER: VolumeBlock = VolumeBlock(164);

    fn seed() -> ChecksumSeed {
        ChecksumSeed::from_uuid(&0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes())
    }

    #[test]
    fn a_block_of_e2fsprogs_is_read_and_written() {
        assert_eq!(MMP_BYTES, 1024);
        let mmp = Mmp::parse(BLOCK, NUMBER).unwrap();
        mmp.verify_checksum(seed()).unwrap();
        assert_eq!(mmp.to_string(), "not in use, written at 1795175805 by vm as q.img, every 5 s");
        let mut ours = [0; 1024];
        mmp.write_to(&mut ours, Some(seed()));
        assert_eq!(ours, *BLOCK);
        let used = mmp.with_user(&[b'h'; 80], b"sda", 10).with_state(MmpState::Mounted(7), 9);
        used.write_to(&mut ours, Some(seed()));
        let read = Mmp::parse(&ours, NUMBER).unwrap();
        read.verify_checksum(seed()).unwrap();
        assert_eq!((read.state(), read.updated(), read.check_interval_s()), (MmpState::Mounted(7), 9, 10));
        assert_eq!((read.host(), read.device()), (&[b'h'; 63][..], &b"sda"[..]));
        Mmp::clean(NUMBER, 5).write_to(&mut ours, None);
        let ours = Mmp::parse(&ours, NUMBER).unwrap();
        assert_eq!((ours.state(), ours.check_interval_s()), (MmpState::Clean, 5));
    }

    #[test]
    fn one_wrong_field_is_named() {
        let place = Place::Mmp(NUMBER);
        let with = |at: usize, bytes: &[u8]| {
            let mut block = *BLOCK;
            block[at..at + bytes.len()].copy_from_slice(bytes);
            Mmp::parse(&block, NUMBER)
        };
        let problem = Problem::Magic { found: 0x004d_4d51, expected: MMP_MAGIC };
        assert_eq!(with(0, &[0x51]).unwrap_err(), Corrupt { place, problem });
        assert_eq!(
            with(4, &[0x51]).unwrap_err(),
            Corrupt::field(place, "mmp_seq", 0xff4d_4d51, "a count, clean or checking")
        );
        assert_eq!(with(4, &SEQUENCE_FSCK.to_le_bytes()).unwrap().state(), MmpState::Checking);
        assert_eq!(with(4, &[7, 0, 0, 0]).unwrap().state(), MmpState::Mounted(7));
        let err = with(8, &[0]).unwrap().verify_checksum(seed()).unwrap_err();
        assert!(err.place == place && matches!(err.problem, Problem::Checksum { .. }));
        assert_eq!(Mmp::parse(&[0; 1023], NUMBER).unwrap_err(), Corrupt::truncated(place, 1024, 1023));
    }

    proptest! {
        #[test]
        fn mutated_blocks_are_parsed_or_refused(edits in prop::collection::vec((0usize..1024, any::<u8>()), 0..20)) {
            let mut block = *BLOCK;
            edits.iter().for_each(|&(at, byte)| block[at] = byte);
            if let Ok(mmp) = Mmp::parse(&block, NUMBER) {
                let _ = (mmp.to_string(), mmp.verify_checksum(seed()));
            }
        }
    }
}
