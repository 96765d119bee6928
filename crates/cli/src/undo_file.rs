//! Where undo files are, and how they are made.

use extant_block::{Device, FileDevice, FileOptions};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The end of a default undo file's name.
const SUFFIX: &str = ".extant-undo";
/// Undo files of one image that are told apart by number.
const NUMBERS: u32 = 100;

/// Names for undo files of an image, in the order in which they are tried.
pub(crate) fn names(image: &Path, state: Option<OsString>, home: Option<OsString>) -> Vec<PathBuf> {
    let mut bases = Vec::new();
    let is_local = !extant::is_address(image) && !image.starts_with("/dev");
    if is_local {
        let mut name = image.as_os_str().to_owned();
        name.push(SUFFIX);
        bases.push(PathBuf::from(name));
    }
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let home = || Some(home.and_then(absolute)?.join(".local/state"));
    if let Some(state) = state.and_then(absolute).or_else(home) {
        let whole = std::path::absolute(image).unwrap_or_else(|_| image.to_owned());
        let flat: Vec<u8> =
            whole.as_os_str().as_bytes().iter().map(|&byte| if byte == b'/' { b'%' } else { byte }).collect();
        let name = String::from_utf8_lossy(&flat).into_owned() + SUFFIX;
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

/// Makes a new undo file of this length, under the first name that is free and whose folder can be
/// written.
pub(crate) fn create(names: &[PathBuf], bytes: u64) -> io::Result<PathBuf> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for name in names {
        if let Some(folder) = name.parent().filter(|folder| folder.ends_with("extant/undo")) {
            std::fs::create_dir_all(folder)?;
        }
        match OpenOptions::new().write(true).create_new(true).open(name) {
            Ok(file) => {
                file.set_len(bytes)?;
                file.sync_all()?;
                let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
                File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
                return Ok(name.clone());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Opens an undo file.
pub(crate) fn open(name: &Path) -> io::Result<impl Device + use<>> {
    FileDevice::open(name, FileOptions { write: true, direct: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_files_lie_beside_images_but_not_beside_disks() {
        let first = |image: &str| names(Path::new(image), Some("/state".into()), None)[0].clone();
        assert_eq!(first("a/disk.img"), Path::new("a/disk.img.extant-undo"));
        assert_eq!(first("/dev/sdx1"), Path::new("/state/extant/undo/%dev%sdx1.extant-undo"));
        let all = names(Path::new("/a"), None, Some("/home/me".into()));
        assert_eq!(all[1], Path::new("/a.extant-undo.1"));
        assert_eq!(all[100], Path::new("/home/me/.local/state/extant/undo/%a.extant-undo"));
    }

    #[test]
    fn no_file_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let all = names(&folder.path().join("image"), None, None);
        let made: Vec<_> = (0..2).map(|_| create(&all, 4096).unwrap()).collect();
        assert_eq!(made, all[..2]);
    }
}
