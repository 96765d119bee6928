//! `extant head`.

use crate::args::HeadArgs;
use crate::cat::print_file;
use crate::failure::Failure;
use crate::globs;
use crate::output::outln;
use crate::session::Session;

pub(crate) fn run(session: &mut Session, args: &HeadArgs) -> Result<(), Failure> {
    let places = globs::expanded(session, &args.places, &args.open)?;
    for (n, place) in places.iter().enumerate() {
        if places.len() > 1 {
            outln!(session.out, "{}==> {} <==", if n > 0 { "\n" } else { "" }, place.quoted())?;
        }
        let mut bytes_left = args.bytes;
        let mut lines_left = args.lines;
        print_file(session, place, &args.open, &mut |piece| match &mut bytes_left {
            Some(left) if *left <= piece.len() as u64 => Some(*left as usize),
            Some(left) => {
                *left -= piece.len() as u64;
                None
            }
            None if lines_left == 0 => Some(0),
            None => {
                let ends = piece.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').map(|(at, _)| at + 1);
                let mut last = None;
                for end in ends.take(usize::try_from(lines_left).unwrap_or(usize::MAX)) {
                    lines_left -= 1;
                    last = Some(end);
                }
                last.filter(|_| lines_left == 0)
            }
        })?;
    }
    Ok(())
}
