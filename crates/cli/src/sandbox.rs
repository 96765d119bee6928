//! The sandbox of a server.

use crate::failure::Failure;
use clap::Args;
use extant::is_address;
use extant_fuse::{ImageIs, confine_calls, confine_files};
use rustix::process::Pid;
use std::path::Path;

/// Whether a server runs in a sandbox.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct SandboxArgs {
    /// Serve the volume without a sandbox. A hostile image that exploits a bug in the server can
    /// then read and change all your files, run programs and use the network
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// The sandbox of the server of one image.
pub(crate) struct Sandbox<'a> {
    image: ImageIs<'a>,
    is_on: bool,
}

impl<'a> Sandbox<'a> {
    pub(crate) fn new(args: SandboxArgs, image: &'a Path) -> Self {
        let image = if is_address(image) { ImageIs::OnNetwork } else { ImageIs::At(image) };
        Self { image, is_on: !args.no_sandbox }
    }

    /// Restricts access to files before the volume is opened, for this thread and the threads it
    /// starts. On a kernel without landlock, that is left to the next step.
    pub(crate) fn confine_files(&self) -> Result<(), Failure> {
        if self.is_on {
            confine_files(self.image)?;
        }
        Ok(())
    }

    /// Restricts the process to what the server of an open volume needs, which includes ending its
    /// child.
    pub(crate) fn confine_calls(&self, child: Option<Pid>) -> Result<(), Failure> {
        if self.is_on {
            confine_calls(self.image, child.map(Pid::as_raw_nonzero).map(|pid| pid.get().unsigned_abs()))?;
        }
        Ok(())
    }
}
