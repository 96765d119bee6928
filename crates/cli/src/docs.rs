//! Man pages, generated from the command line's definition.

use crate::args::Args;
use crate::failure::Failure;
use clap::CommandFactory;
use std::path::Path;

pub(crate) fn man(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::host(directory, error))?;
    clap_mangen::generate_to(Args::command(), directory).map_err(|error| Failure::host(directory, error))
}
