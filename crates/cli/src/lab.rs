//! `extant lab`.

use crate::failure::Failure;
use crate::session::Session;
use extant_lab::cli::LabCommand;

pub(crate) fn run(session: &mut Session, command: &LabCommand) -> Result<(), Failure> {
    Ok(extant_lab::cli::run(command, session.out.as_write()?)?)
}
