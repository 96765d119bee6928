//! The ioctls that reach a FUSE server: flags, projects, discarding free space, the volume's label.

use crate::errno::{Errno, Result};
use crate::object::Object;
use crate::served::Served;
use crate::wire::{FITRIM, FsXattr, IoctlIn, IoctlOut, Reply, TrimRange};
use extant_format::{FileKind, InodeFlags};
use extant_fs::{Attributes, Caller, Capabilities};
use zerocopy::{FromBytes, IntoBytes};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;

/// Bits of `FS_XFLAG_*` and the flags that they stand for (fs/ioctl.c, `fileattr_fill_xflags`).
const XFLAGS: [(u32, InodeFlags); 6] = [
    (0x08, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
];

/// Flags that programs see (`EXT4_FL_USER_VISIBLE`).
const VISIBLE: u32 = 0x725b_dfff;

/// Whether this ioctl changes an inode.
pub(crate) const fn changes(command: u32) -> bool {
    matches!(command, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR)
}

fn xflags(flags: InodeFlags) -> u32 {
    XFLAGS.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(bit, _)| bit).sum()
}

pub(crate) async fn ioctl(
    served: &Served,
    nodeid: u64,
    caller: &Caller,
    args: &IoctlIn,
    data: &[u8],
) -> Result<Reply> {
    let object = served.nodes.get(nodeid).await?;
    if !matches!(object.kind(), Some(FileKind::Regular | FileKind::Directory)) {
        return Err(Errno::NOTTY.into());
    }
    let attributes = object.attributes(&served.volume)?;
    let answer = match args.cmd {
        FS_IOC_GETFLAGS => (attributes.flags.bits() & VISIBLE).as_bytes().to_vec(),
        FS_IOC_SETFLAGS => {
            let (bits, _) = u32::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            object.live()?.set_flags(caller, InodeFlags::from_bits_retain(bits)).await?;
            Vec::new()
        }
        FS_IOC_GETVERSION => attributes.generation.as_bytes().to_vec(),
        FS_IOC_FSGETXATTR => {
            let (xflags, projid) = (xflags(attributes.flags), attributes.project.unwrap_or(0));
            FsXattr { xflags, projid, ..FsXattr::default() }.as_bytes().to_vec()
        }
        FS_IOC_FSSETXATTR => {
            let (wanted, _) = FsXattr::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            set_xflags(&object, caller, &attributes, &wanted).await?;
            Vec::new()
        }
        FITRIM => {
            let (mut range, _) = TrimRange::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
            if !caller.can(Capabilities::SYS_ADMIN) {
                return Err(Errno::PERM.into());
            }
            let end = range.start.saturating_add(range.len);
            range.len = served.volume.trim(range.start..end, range.minlen).await?;
            range.as_bytes().to_vec()
        }
        FS_IOC_GETFSLABEL => {
            let mut label = served.volume.label();
            label.resize(256, 0);
            label
        }
        FS_IOC_SETFSLABEL => {
            if !caller.can(Capabilities::SYS_ADMIN) {
                return Err(Errno::PERM.into());
            }
            let label = data.split(|&byte| byte == 0).next().unwrap_or_default();
            served.volume.set_label(label).await?;
            Vec::new()
        }
        _ => return Err(Errno::NOTTY.into()),
    };
    let mut answer = answer;
    // The kernel expects as many bytes as the command's number declares: GETFLAGS declares a
    // `long`.
    answer.resize(if answer.is_empty() { 0 } else { args.out_size.min(4096) as usize }, 0);
    Ok(Reply::Ioctl(IoctlOut::default(), answer))
}

async fn set_xflags(object: &Object, caller: &Caller, now: &Attributes, wanted: &FsXattr) -> Result<()> {
    let known: u32 = XFLAGS.iter().map(|(bit, _)| bit).sum();
    if wanted.xflags & !known != 0 || wanted.extsize != 0 || wanted.cowextsize != 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    let node = object.live()?;
    let mut flags = now.flags;
    for (bit, flag) in XFLAGS {
        flags.set(flag, wanted.xflags & bit != 0);
    }
    let project = (wanted.projid != now.project.unwrap_or(0)).then_some(wanted.projid);
    let flags = (flags != now.flags).then_some(flags);
    Ok(node.set_flags_and_project(caller, flags, project).await?)
}
