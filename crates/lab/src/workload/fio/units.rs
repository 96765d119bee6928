//! Numbers with units in fio's syntax.

use extant_rt::Nanos;

/// Parses a size in bytes: `4096`, `4k`, `5G`.
///
/// Like fio by default (`kb_base=1024`), `4k`, `4kB` and `4Ki` are 4096 bytes, and `4KiB` is 4000,
/// the reverse of the standard.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let unit = unit.to_ascii_lowercase();
    let (base, prefix) = match unit.strip_suffix("ib") {
        Some(prefix) => (1000_u64, prefix),
        None => (1024, unit.strip_suffix(['b', 'i']).unwrap_or(&unit)),
    };
    let power = match prefix {
        "" if base == 1024 && !unit.ends_with('i') => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return Err(format!("\"{text}\" is not a size; write a number with k, m, g, t or p")),
    };
    number.checked_mul(base.pow(power)).ok_or_else(|| format!("\"{text}\" is too large"))
}

/// Parses a duration; a number without a unit is in `default_unit`.
pub(crate) fn time(text: &str, default_unit: &str) -> Result<Nanos, String> {
    let (number, unit) = split(text)?;
    let unit = if unit.is_empty() { default_unit } else { unit };
    let ns = match unit.to_ascii_lowercase().as_str() {
        "ns" | "nsec" => 1,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" | "hour" => 3_600_000_000_000,
        "d" | "day" => 86_400_000_000_000,
        _ => return Err(format!("\"{text}\" is not a time; write a number with us, ms, s, m, h or d")),
    };
    number.checked_mul(ns).map(Nanos).ok_or_else(|| format!("\"{text}\" is too long"))
}

/// Parses a count.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a whole number"))
}

/// Parses a boolean; a key without a value means yes.
pub(crate) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err(format!("\"{text}\" is neither 0 nor 1")),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| format!("\"{text}\" does not begin with a number"))?;
    Ok((number, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_fio_takes_them_for() {
        assert_eq!(bytes("4k"), Ok(4096));
        assert_eq!(bytes("5G"), Ok(5 << 30));
        assert_eq!(bytes("128kB"), Ok(128 << 10));
        // fio --name=a --ioengine=null --bs=1 --size=4KiB reads 4000 bytes.
        assert_eq!(bytes("4KiB"), Ok(4000));
        assert_eq!(bytes("1mib"), Ok(1_000_000));
        // KDiskMark writes --bs=1024Ki, which fio takes for 1 MiB.
        assert_eq!(bytes("1024Ki"), Ok(1 << 20));
        assert!(bytes("4ib").is_err() && bytes("4i").is_err());
        assert_eq!(bytes("512"), Ok(512));
        assert!(
            bytes("4x").is_err()
                && bytes("k").is_err()
                && bytes("-4").is_err()
                && bytes("99999999p").is_err()
        );
    }

    #[test]
    fn times_have_the_default_unit_of_their_key() {
        assert_eq!(time("15", "s"), Ok(Nanos::from_secs(15)));
        assert_eq!(time("1000000", "us"), Ok(Nanos::from_secs(1)));
        assert_eq!(time("500ms", "s"), Ok(Nanos::from_millis(500)));
        assert_eq!(time("2m", "s"), Ok(Nanos::from_secs(120)));
        assert!(time("soon", "s").is_err() && time("1y", "s").is_err());
    }
}
