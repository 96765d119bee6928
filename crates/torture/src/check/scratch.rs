//! A file that holds one image after another, for programs that need a file.

use crate::Image;
use crate::image::PAGE;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Images with the same base differ in few pages; only those are written.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: tempfile::TempDir,
    path: PathBuf,
    /// The file, and the base of the image it holds.
    file: Option<(File, Arc<[u8]>)>,
    /// Pages that may differ from the base.
    differs: BTreeSet<usize>,
}

impl Scratch {
    /// Creates it in memory if possible.
    pub(super) fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        let path = folder.path().join("image");
        Ok(Self { folder, path, file: None, differs: BTreeSet::new() })
    }

    /// The folder of the file.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `image` to the file.
    pub(super) fn put(&mut self, image: &Image) -> io::Result<()> {
        let base = image.base();
        if self.file.as_ref().is_none_or(|(_, held)| !Arc::ptr_eq(held, base)) {
            let file =
                File::options().read(true).write(true).create(true).truncate(false).open(&self.path)?;
            file.set_len(0)?;
            file.set_len(base.len() as u64)?;
            for (page, bytes) in base.chunks_exact(PAGE).enumerate().filter(|(_, bytes)| **bytes != [0; PAGE])
            {
                file.write_all_at(bytes, (page * PAGE) as u64)?;
            }
            (self.file, self.differs) = (Some((file, base.clone())), BTreeSet::new());
        }
        let (file, _) = self.file.as_ref().expect("it was just made");
        let mut stale = std::mem::take(&mut self.differs);
        for (page, bytes) in image.changed_pages() {
            stale.remove(&page);
            self.differs.insert(page);
            file.write_all_at(bytes, (page * PAGE) as u64)?;
        }
        for page in stale {
            file.write_all_at(&base[page * PAGE..][..PAGE], (page * PAGE) as u64)?;
        }
        Ok(())
    }

    /// The image now in the file: `image`, as changed by a program.
    pub(super) fn get(&mut self, image: &Image) -> io::Result<Image> {
        let (file, _) = self.file.as_ref().expect("an image was put there");
        let mut bytes = vec![0; image.len()];
        file.read_exact_at(&mut bytes, 0)?;
        let found = image.holding(&bytes);
        self.differs.extend(found.changed_pages().map(|(page, _)| page));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_the_last_image_put_there() {
        let base: Arc<[u8]> = (0..8 * PAGE).map(|at| (at / PAGE) as u8).collect();
        let (mut a, mut b) = (Image::new(base.clone()), Image::new(base));
        a.write(PAGE, 512, Some(&[9; 512]));
        b.write(5 * PAGE + 512, 1024, None);
        let mut scratch = Scratch::new().unwrap();
        for image in [&a, &b, &a] {
            scratch.put(image).unwrap();
            assert_eq!(std::fs::read(scratch.path()).unwrap(), image.to_vec());
        }
        let file = File::options().write(true).open(scratch.path()).unwrap();
        file.write_all_at(&[7; 512], 3 * PAGE as u64).unwrap();
        let found = scratch.get(&a).unwrap();
        assert_eq!(found.to_vec()[3 * PAGE], 7);
        scratch.put(&b).unwrap();
        assert_eq!(std::fs::read(scratch.path()).unwrap(), b.to_vec(), "the program's change is gone");
    }
}
