//! Locates, creates and opens undo files.

use extant::Part;
use extant_block::{FileDevice, FileOptions};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Suffix of a default undo file's name.
const SUFFIX: &str = ".extant-undo";
/// How many undo files of one volume a folder can hold; numbers distinguish them.
const NUMBERS: u32 = 100;

/// Names for an undo file of a volume, in the order in which they are tried. The volume begins at
/// `offset_bytes` of its image; volumes on one disk get different names.
pub(crate) fn names(
    image: &Path,
    part: &Part,
    offset_bytes: u64,
    state: Option<OsString>,
    home: Option<OsString>,
) -> Vec<PathBuf> {
    let suffix = match part {
        Part::Whole => SUFFIX.to_owned(),
        _ => format!(".at-{offset_bytes}{SUFFIX}"),
    };
    let is_address = extant::is_address(image);
    // The undo files of an image do not depend on the path that leads to it.
    let is_link = image.symlink_metadata().is_ok_and(|link| link.is_symlink());
    let image = match is_link && !is_address {
        true => image.canonicalize().unwrap_or_else(|_| image.to_owned()),
        false => image.to_owned(),
    };
    let mut bases = Vec::new();
    if !is_address && !image.starts_with("/dev") {
        let mut name = image.as_os_str().to_owned();
        name.push(&suffix);
        bases.push(PathBuf::from(name));
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let home = || Some(home.and_then(absolute)?.join(".local/state"));
    if let Some(state) = state.and_then(absolute).or_else(home) {
        let whole = match is_address {
            true => image,
            false => image.canonicalize().or_else(|_| std::path::absolute(&image)).unwrap_or(image),
        };
        let flat: Vec<u8> =
            whole.as_os_str().as_bytes().iter().map(|&byte| if byte == b'/' { b'%' } else { byte }).collect();
        let name = String::from_utf8_lossy(&flat).into_owned() + &suffix;
        bases.push(state.join("extant/undo").join(name));
    }
    let numbered = |base: &PathBuf, n: u32| match n {
        0 => base.clone(),
        n => {
            let mut name = base.as_os_str().to_owned();
            name.push(format!(".{n}"));
            name.into()
        }
    };
    bases.iter().flat_map(|base| (0..NUMBERS).map(|n| numbered(base, n)).collect::<Vec<_>>()).collect()
}

/// Creates an undo file with room for `bytes` bytes, under the first name that is unused and whose
/// folder can be written. Only its owner can read it.
///
/// # Errors
/// The host's error, and the name of the file that it concerns. If there is not enough room, the
/// file is removed again.
pub(crate) fn create(names: &[PathBuf], bytes: u64) -> Result<PathBuf, (PathBuf, io::Error)> {
    let mut last = (PathBuf::from("the undo file"), io::Error::from(io::ErrorKind::NotFound));
    for name in names {
        if let Some(folder) = name.parent().filter(|folder| folder.ends_with("extant/undo")) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| (folder.to_owned(), error))?;
        }
        let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(name);
        match opened {
            Ok(file) => match fill(&file, name, bytes) {
                Ok(()) => return Ok(name.clone()),
                Err(error) => {
                    remove(name);
                    return Err((name.clone(), error));
                }
            },
            Err(error) => last = (name.clone(), error),
        }
    }
    Err(last)
}

/// Allocates the space of a new file, and makes its name durable.
fn fill(file: &File, name: &Path, bytes: u64) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        // Without fallocate, the contents will take the space when they are written, which is
        // before the volume is.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(bytes)?,
        done => done?,
    }
    file.sync_all()?;
    let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes an undo file that keeps nothing.
pub(crate) fn remove(name: &Path) {
    // If removing it fails, the file itself says that there is nothing to undo.
    let _ = std::fs::remove_file(name);
}

/// Opens an undo file.
pub(crate) fn open(name: &Path) -> io::Result<FileDevice> {
    FileDevice::open(name, FileOptions { write: true, direct: false })
}

/// Opens the undo file with this name, if there is one. A file that another user could have put
/// there is ignored: it must belong to this user or to the image's owner, and only its owner may be
/// able to write it.
pub(crate) fn find(name: &Path, image: &Path) -> io::Result<Option<FileDevice>> {
    use rustix::fs::OFlags;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(name);
    let Ok(file) = opened else { return Ok(None) };
    let found = file.metadata()?;
    let image_owner = image.metadata().ok().filter(|image| image.is_file()).map(|image| image.uid());
    let is_owners = found.uid() == rustix::process::geteuid().as_raw() || Some(found.uid()) == image_owner;
    if !found.is_file() || !is_owners || found.mode() & 0o022 != 0 {
        return Ok(None);
    }
    FileDevice::from_fd(file.into(), name, FileOptions { write: true, direct: false }).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn all(image: &str, part: &Part, offset_bytes: u64) -> Vec<PathBuf> {
        names(Path::new(image), part, offset_bytes, Some("/state".into()), None)
    }

    #[test]
    fn undo_files_lie_beside_images_but_not_beside_disks() {
        let first = |image: &str| all(image, &Part::Whole, 0)[0].clone();
        assert_eq!(first("a/disk.img"), Path::new("a/disk.img.extant-undo"));
        assert_eq!(first("/dev/sdx1"), Path::new("/state/extant/undo/%dev%sdx1.extant-undo"));
        assert_eq!(first("nbd://host/x"), Path::new("/state/extant/undo/nbd:%%host%x.extant-undo"));
        let all = names(Path::new("/a"), &Part::Whole, 0, None, Some("/home/me".into()));
        assert_eq!(all[1], Path::new("/a.extant-undo.1"));
        assert_eq!(all[100], Path::new("/home/me/.local/state/extant/undo/%a.extant-undo"));
    }

    #[test]
    fn partitions_of_a_disk_do_not_share_undo_files() {
        let of = |number: &str, offset_bytes| all("disk", &Part::Partition(number.into()), offset_bytes);
        let (first, second, whole) = (of("1", 1 << 20), of("2", 9 << 20), all("disk", &Part::Whole, 0));
        assert!(first.iter().all(|name| !second.contains(name) && !whole.contains(name)));
        assert_eq!(first[0], Path::new("disk.at-1048576.extant-undo"));
    }

    #[test]
    fn a_link_to_an_image_has_the_images_undo_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::write(folder.join("image"), "").unwrap();
        std::os::unix::fs::symlink("image", folder.join("link")).unwrap();
        let of = |name: &str| all(folder.join(name).to_str().unwrap(), &Part::Whole, 0);
        assert_eq!(of("link"), of("image"));
    }

    #[test]
    fn no_file_is_overwritten_and_none_can_be_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let all = all(folder.path().join("image").to_str().unwrap(), &Part::Whole, 0);
        let made: Vec<_> = (0..2).map(|_| create(&all, 4096).unwrap()).collect();
        assert_eq!(made, all[..2]);
        assert_eq!(made[0].metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_others_could_have_put_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (image, name) = (folder.path().join("image"), folder.path().join("image.extant-undo"));
        std::fs::write(&image, "").unwrap();
        assert!(find(&name, &image).unwrap().is_none());
        std::fs::write(&name, [0; 4096]).unwrap();
        std::fs::set_permissions(&name, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(find(&name, &image).unwrap().is_some());
        std::fs::set_permissions(&name, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(find(&name, &image).unwrap().is_none());
        std::fs::remove_file(&name).unwrap();
        std::fs::write(folder.path().join("elsewhere"), [0; 4096]).unwrap();
        std::os::unix::fs::symlink("elsewhere", &name).unwrap();
        assert!(find(&name, &image).unwrap().is_none());
    }
}
