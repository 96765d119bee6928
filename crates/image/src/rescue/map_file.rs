//! Maps of the readable parts of a disk, as ddrescue writes them ("Mapfile structure" in its
//! manual).

use extant_block::Spans;
use std::fmt::Write;

/// Why a map cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not one of a ddrescue map: {text}")]
pub struct MapError {
    /// The number of the line, counted from 1.
    pub line: usize,
    /// The text of the line.
    pub text: String,
}

/// The holes that a map lists: everything that is not rescued (`+`), up to the map's end.
///
/// # Errors
/// The first line that is not understood.
pub fn holes_of(map: &str) -> Result<Spans, MapError> {
    let mut holes = Spans::default();
    let mut has_state = false;
    for (n, line) in map.lines().enumerate() {
        let bad = || MapError { line: n + 1, text: line.to_owned() };
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [] => {}
            // The first line contains ddrescue's position, and its pass.
            [at, _, ..] if !has_state => {
                number(at).ok_or_else(bad)?;
                has_state = true;
            }
            [at, bytes, status] => {
                let (at, bytes) = (number(at).ok_or_else(bad)?, number(bytes).ok_or_else(bad)?);
                let end = at.checked_add(bytes).ok_or_else(bad)?;
                match status {
                    "+" => {}
                    "?" | "*" | "/" | "-" => holes.insert(at..end),
                    _ => return Err(bad()),
                }
            }
            _ => return Err(bad()),
        }
    }
    match has_state {
        true => Ok(holes),
        false => Err(MapError { line: 1, text: map.lines().next().unwrap_or_default().to_owned() }),
    }
}

/// Writes a map of `capacity_bytes` bytes from `offset_bytes` on, in which these holes, counted
/// from there, are bad sectors.
pub fn map_of(holes: &Spans, offset_bytes: u64, capacity_bytes: u64) -> String {
    let mut map = "# Mapfile. Created by extant\n# current_pos  current_status  current_pass\n".to_owned();
    map += "0x00000000     +               1\n#      pos        size  status\n";
    let mut at = 0;
    let mut line = |from: u64, to: u64, status: char| {
        if from < to {
            let _ = writeln!(map, "0x{:08X}  0x{:08X}  {status}", offset_bytes + from, to - from);
        }
    };
    for hole in holes.iter() {
        line(at, hole.start, '+');
        line(hole.start, hole.end, '-');
        at = hole.end;
    }
    line(at, capacity_bytes, '+');
    map
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_written() {
        let map = "# Mapfile. Created by GNU ddrescue version 1.27\n# Command line: ddrescue a b m\n\
            0x00120000     ?               1\n#      pos        size  status\n\
            0x00000000  0x00117000  +\n0x00117000  0x00000200  -\n0x00117200  0x00001000  /\n\
            0x00118200  0x00E00000  +\n";
        let holes = holes_of(map).unwrap();
        let mut expected = Spans::default();
        expected.insert(0x117000..0x118200);
        assert_eq!(holes, expected);
        assert_eq!(holes_of(&map_of(&holes, 0, 0xf1_8200)).unwrap(), holes);
        for bad in ["", "nothing\n", "0 + 1\n0 512 x\n", "0 + 1\n0 512\n"] {
            assert!(holes_of(bad).is_err(), "{bad:?}");
        }
    }
}
