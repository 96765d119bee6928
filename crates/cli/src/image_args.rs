//! How to open an image for reading.

/// How to open an image for reading.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ImageArgs {
    /// Use the superblock at this byte of the image, such as a backup, which `info` lists; the
    /// primary one is at 1024
    #[arg(long, value_name = "BYTE")]
    pub(crate) superblock: Option<u64>,

    /// Read the volume without replaying its journal
    #[arg(long)]
    pub(crate) ignore_journal: bool,
}
