//! `extant sync`.

use crate::failure::Failure;
use crate::mount_args::SyncArgs;
use extant_fuse::{Mounted, SYNC_ATTRIBUTE, WRITERS_ATTRIBUTE, inode_name, mounted_at};
use rustix::fs::{Mode, OFlags};
use std::path::Path;

/// `extant sync`.
pub(crate) fn run(args: &SyncArgs) -> Result<(), Failure> {
    let mounted = ours(&args.directory)?;
    if is_read_only(&mounted.point) {
        return Ok(());
    }
    make_durable(&mounted.point)
}

/// Has the kernel send what it keeps of files that are open for writing, and the server write
/// everything and commit.
pub(crate) fn make_durable(point: &Path) -> Result<(), Failure> {
    sync_writers(point)?;
    rustix::fs::setxattr(point, SYNC_ATTRIBUTE, b"", rustix::fs::XattrFlags::empty())
        .map_err(|error| Failure::host(point, std::io::Error::from(error)))
}

/// Syncs each file that is open for writing. Those that are closed meanwhile have been sent.
fn sync_writers(point: &Path) -> Result<(), Failure> {
    const MOST_BYTES: usize = 64 << 10;
    let failed = |error: rustix::io::Errno| Failure::host(point, std::io::Error::from(error));
    let mut writers = vec![0; MOST_BYTES];
    let len = match rustix::fs::getxattr(point, WRITERS_ATTRIBUTE, &mut writers) {
        Err(rustix::io::Errno::RANGE) => {
            let words = "more than 8,192 files are open for writing, too many to sync each";
            return Err(Failure::host(point, std::io::Error::other(words)));
        }
        len => len.map_err(failed)?,
    };
    for nodeid in writers[..len].chunks_exact(8) {
        let nodeid = u64::from_ne_bytes(nodeid.try_into().expect("8 bytes"));
        let open = |access: OFlags| {
            rustix::fs::open(point.join(inode_name(nodeid)), access | OFlags::CLOEXEC, Mode::empty())
        };
        match open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY)) {
            Ok(file) => rustix::fs::fsync(file).map_err(failed)?,
            // Closed since, or another user's.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::STALE | rustix::io::Errno::ACCESS) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// The mount on a directory, if it is one of ours.
pub(crate) fn ours(directory: &Path) -> Result<Mounted, Failure> {
    mounted_at(directory).filter(|mounted| mounted.is_ours).ok_or_else(|| {
        let error = std::io::Error::other("nothing is mounted here by extant; findmnt shows what is");
        Failure::host(directory, error)
    })
}

pub(crate) fn is_read_only(point: &Path) -> bool {
    rustix::fs::statvfs(point).is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
