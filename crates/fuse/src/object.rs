//! Inodes that the kernel knows.

use crate::errno::{Errno, Failure, Result};
use crate::settings::VALID_SECONDS;
use crate::shown_owners::ShownOwners;
use crate::wire::{Attr, AttrOut, EntryOut, Statx, StatxTime};
use extant_format::{DeviceNumber, FileKind, Inode, InodeFlags, InodeNumber, Timestamp};
use extant_fs::{Attributes, Error, Node, Volume};
use std::sync::Arc;

/// The protocol's number for the root directory.
pub(crate) const ROOT: u64 = 1;

/// An inode in use.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    /// An inode of a volume open for writing.
    Live(Node),
    /// An inode of a volume open for reading.
    Stored(Arc<Inode>),
}

impl Object {
    pub(crate) fn inode(&self) -> InodeNumber {
        match self {
            Self::Live(node) => node.inode(),
            Self::Stored(inode) => inode.number,
        }
    }

    pub(crate) fn generation(&self) -> u32 {
        match self {
            Self::Live(node) => node.generation(),
            Self::Stored(inode) => inode.raw.i_generation.get(),
        }
    }

    pub(crate) fn kind(&self) -> Option<FileKind> {
        match self {
            Self::Live(node) => node.kind(),
            Self::Stored(inode) => inode.kind(),
        }
    }

    /// # Errors
    /// The volume is read-only.
    pub(crate) fn live(&self) -> Result<&Node> {
        match self {
            Self::Live(node) => Ok(node),
            Self::Stored(_) => Err(Failure::Volume(Error::ReadOnly)),
        }
    }

    pub(crate) fn attributes(&self, volume: &Volume) -> Result<Attributes> {
        match self {
            Self::Live(node) => Ok(node.attributes()?),
            Self::Stored(inode) => Ok(Attributes::of(inode, volume.superblock())?),
        }
    }

    pub(crate) fn attr_out(&self, volume: &Volume, shown: &ShownOwners) -> Result<AttrOut> {
        let attr = attr(&self.attributes(volume)?, volume, shown);
        Ok(AttrOut { attr_valid: VALID_SECONDS, attr, ..AttrOut::default() })
    }

    pub(crate) fn entry(&self, volume: &Volume, shown: &ShownOwners) -> Result<EntryOut> {
        let attributes = self.attributes(volume)?;
        Ok(EntryOut {
            nodeid: nodeid(self.inode()),
            generation: attributes.generation.into(),
            entry_valid: VALID_SECONDS,
            attr_valid: VALID_SECONDS,
            attr: attr(&attributes, volume, shown),
            ..EntryOut::default()
        })
    }
}

/// The protocol's number for an inode. The numbers of the root directory and of inode 1 are
/// exchanged.
pub(crate) fn nodeid(number: InodeNumber) -> u64 {
    match number {
        InodeNumber::ROOT => ROOT,
        InodeNumber(1) => InodeNumber::ROOT.0.into(),
        InodeNumber(other) => other.into(),
    }
}

/// Returns the inode for a number of the protocol.
///
/// # Errors
/// There is no such inode.
pub(crate) fn number_of(nodeid: u64) -> Result<InodeNumber> {
    let number = u32::try_from(nodeid).map_err(|_| Errno::STALE)?;
    Ok(match nodeid {
        ROOT => InodeNumber::ROOT,
        _ if number == InodeNumber::ROOT.0 => InodeNumber(1),
        _ => InodeNumber(number),
    })
}

/// The answer to a lookup of a name that does not exist.
pub(crate) fn no_entry() -> EntryOut {
    EntryOut { entry_valid: VALID_SECONDS, ..EntryOut::default() }
}

/// A device number as the kernel packs it (`new_encode_dev`).
fn packed(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`packed`].
pub(crate) fn unpacked(packed: u32) -> DeviceNumber {
    DeviceNumber { major: (packed & 0xf_ff00) >> 8, minor: (packed & 0xff) | ((packed >> 12) & 0xf_ff00) }
}

fn attr(of: &Attributes, volume: &Volume, shown: &ShownOwners) -> Attr {
    let (uid, gid) = shown.owner(of.uid, of.gid);
    Attr {
        ino: of.inode.0.into(),
        size: of.size,
        blocks: of.blocks,
        atime: of.accessed.seconds,
        mtime: of.modified.seconds,
        ctime: of.changed.seconds,
        atimensec: of.accessed.nanos,
        mtimensec: of.modified.nanos,
        ctimensec: of.changed.nanos,
        mode: mode(of),
        nlink: of.links.into(),
        uid,
        gid,
        rdev: of.device.map_or(0, packed),
        blksize: volume.superblock().block_size().bytes(),
        flags: 0,
    }
}

fn mode(of: &Attributes) -> u32 {
    u32::from(of.kind.mode_bits() | of.permissions)
}

/// The attributes for `statx`, including the creation time and the flags.
pub(crate) fn statx(of: &Attributes, volume: &Volume, shown: &ShownOwners) -> Statx {
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    // STATX_ATTR_COMPRESSED, IMMUTABLE, APPEND, NODUMP, ENCRYPTED and VERITY have the same bits as
    // the inode flags.
    const SHOWN: InodeFlags = InodeFlags::COMPR
        .union(InodeFlags::IMMUTABLE)
        .union(InodeFlags::APPEND)
        .union(InodeFlags::NODUMP)
        .union(InodeFlags::ENCRYPT)
        .union(InodeFlags::VERITY);
    let (uid, gid) = shown.owner(of.uid, of.gid);
    let time = |time: Timestamp| StatxTime { tv_sec: time.seconds, tv_nsec: time.nanos, reserved: 0 };
    Statx {
        mask: BASIC | if of.created.is_some() { BTIME } else { 0 },
        blksize: volume.superblock().block_size().bytes(),
        attributes: u64::from((of.flags & SHOWN).bits()),
        attributes_mask: u64::from(SHOWN.bits()),
        nlink: of.links.into(),
        uid,
        gid,
        mode: mode(of) as u16,
        ino: of.inode.0.into(),
        size: of.size,
        blocks: of.blocks,
        atime: time(of.accessed),
        btime: of.created.map(time).unwrap_or_default(),
        ctime: time(of.changed),
        mtime: time(of.modified),
        rdev_major: of.device.map_or(0, |device| device.major),
        rdev_minor: of.device.map_or(0, |device| device.minor),
        ..Statx::default()
    }
}

/// The kind in a mode.
pub(crate) fn kind_of(mode: u32) -> Result<FileKind> {
    let kind = u16::try_from(mode).ok().and_then(FileKind::from_mode);
    kind.ok_or(Failure::Request(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_packed_as_the_kernel_does() {
        let device = DeviceNumber { major: 0x123, minor: 0xa_bcde };
        assert_eq!(packed(device), 0xabc1_23de);
        assert_eq!(unpacked(0xabc1_23de), device);
    }

    #[test]
    fn the_root_is_number_one() {
        assert_eq!([2, 1, 12].map(|number| nodeid(InodeNumber(number))), [1, 2, 12]);
        for number in [1, 2, 3, u32::MAX].map(InodeNumber) {
            assert_eq!(number_of(nodeid(number)).unwrap(), number);
        }
        assert!(number_of(1 << 32).is_err());
    }
}
