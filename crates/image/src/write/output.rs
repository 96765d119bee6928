//! The image file, unnamed until it is complete.

use super::new_file::{Naming, NewFile, behind_links};
use crate::BuildError;
use extant_block::{Claim, Device, FileDevice, FileOptions, ForeignLocks, flush};
use extant_rt::Rt;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image to be replaced, or an unused name; claimed against other writers.
pub(crate) struct Replaced {
    path: PathBuf,
    claim: Claim,
    naming: Naming,
}

impl Replaced {
    /// Claims the file at `path`, or the target of a symbolic link there.
    ///
    /// # Errors
    /// The file is not a regular file, or is in use by the kernel or another program.
    pub(crate) fn claim(path: &Path, foreign: ForeignLocks) -> Result<Self, BuildError> {
        let path = behind_links(path).map_err(|e| BuildError::output("look at", path, e))?;
        match rustix::fs::stat(&path).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode)) {
            Ok(rustix::fs::FileType::RegularFile) | Err(Errno::NOENT) => {}
            Ok(_) => {
                let path = crate::quoted_path(&path);
                return Err(BuildError::Options(format!(
                    "{path} is not a regular file; name a file for the image"
                )));
            }
            Err(e) => return Err(BuildError::output("look at", &path, e)),
        }
        let claim = FileDevice::claim_to_replace(&path, foreign);
        let claim = claim.map_err(|e| BuildError::output("replace", &path, e))?;
        Ok(Self { claim, path, naming: Naming::Replacing })
    }

    /// Claims a name that must be unused now and when the image is complete.
    ///
    /// # Errors
    /// Something has the name.
    pub(crate) fn unused(path: &Path) -> Result<Self, BuildError> {
        let failed = |e| BuildError::output("create", path, e);
        match rustix::fs::lstat(path) {
            Ok(_) => return Err(failed(Errno::EXIST)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let claim = FileDevice::claim_to_replace(path, ForeignLocks::Honour)
            .map_err(|e| BuildError::output("create", path, e))?;
        Ok(Self { path: path.to_owned(), claim, naming: Naming::Unused })
    }
}

/// An image under construction. Only [`Output::commit`] makes it appear under its name; if dropped,
/// killed or crashed before, it leaves nothing there.
pub(crate) struct Output {
    file: NewFile,
    naming: Naming,
    committed: bool,
    device: Arc<FileDevice>,
    /// Keeps writers away from the current image of that name until it is replaced.
    _replaced: Claim,
}

impl Output {
    /// Creates a file of `bytes` zeros in the directory of the image to be replaced, with the
    /// permissions of that image.
    pub(crate) fn create(replaced: Replaced, bytes: u64, rt: &Rt) -> Result<Self, BuildError> {
        let Replaced { path, claim, naming } = replaced;
        let mut output = Self::create_over(&path, claim, bytes, rt)?;
        output.naming = naming;
        Ok(output)
    }

    /// Like [`Self::create`], but for a file already claimed by the caller.
    pub(crate) fn create_over(path: &Path, replaced: Claim, bytes: u64, rt: &Rt) -> Result<Self, BuildError> {
        let file = NewFile::create(path)?;
        rustix::fs::ftruncate(file.fd(), bytes)
            .map_err(|e| BuildError::output("set the size of", path, e))?;
        let device = FileDevice::from_fd(file.duplicate()?, path, FileOptions { write: true, direct: true })
            .map_err(|e| BuildError::output("open", path, e))?;
        let device = Arc::new(device.driven_by(rt));
        let naming = Naming::Replacing;
        Ok(Self { file, naming, committed: false, device, _replaced: replaced })
    }

    pub(crate) fn device(&self) -> Arc<FileDevice> {
        self.device.clone()
    }

    /// Copies the extended attributes of the file being replaced; see [`NewFile::keep_attributes`].
    pub(crate) fn keep_attributes(&self) -> Result<(), BuildError> {
        self.file.keep_attributes()
    }

    /// Makes the contents durable, then links the file under its name, then makes that durable.
    pub(crate) fn commit(mut self, rt: &Rt) -> Result<(), BuildError> {
        let device: &dyn Device = &*self.device;
        rt.block_on(flush(device))??;
        self.file.name(self.naming)?;
        self.committed = true;
        self.file.sync_name()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.committed {
            // The device may hold the file open a little longer; free its space now.
            let _ = rustix::fs::ftruncate(self.file.fd(), 0);
        }
    }
}
