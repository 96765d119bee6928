//! The address of an export.

use super::NbdError;
use std::fmt;
use std::path::PathBuf;

/// A server's address and the name of one of its exports.
///
/// Parsed from NBD URIs (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>), as
/// accepted by `nbdinfo`, `nbdcopy` and `qemu-img`: `nbd://HOST[:PORT]/EXPORT` and
/// `nbd+unix:///EXPORT?socket=PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTarget {
    /// The server.
    pub address: NbdAddress,
    /// The export's name; empty for the server's default.
    pub export: String,
}

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

/// Assigned by IANA.
const DEFAULT_PORT: u16 = 10809;

impl std::str::FromStr for NbdTarget {
    type Err = NbdError;

    fn from_str(uri: &str) -> Result<Self, NbdError> {
        let bad = |why| NbdError::Uri { uri: uri.into(), why };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| bad("it has no scheme such as nbd://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export).ok_or_else(|| bad("its export name is not percent-encoded UTF-8"))?;
        match scheme {
            "nbd" if !query.is_empty() => Err(bad("nbd:// takes no parameters")),
            "nbd" => Ok(Self {
                address: tcp(authority).ok_or_else(|| bad("its host or port is malformed"))?,
                export,
            }),
            "nbd+unix" => {
                let socket = query.split('&').find_map(|p| p.strip_prefix("socket="));
                let socket = socket.ok_or_else(|| bad("nbd+unix:// needs ?socket=PATH"))?;
                let path =
                    decode(socket).ok_or_else(|| bad("its socket path is not percent-encoded UTF-8"))?;
                Ok(Self { address: NbdAddress::Unix(path.into()), export })
            }
            "nbds" | "nbds+unix" => Err(bad("TLS is not supported; use nbd:// through a tunnel")),
            _ => Err(bad("its scheme is neither nbd nor nbd+unix")),
        }
    }
}

fn tcp(authority: &str) -> Option<NbdAddress> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            match rest.strip_prefix(':') {
                None if !rest.is_empty() => return None,
                port => (host, port),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let number = |p: &str| if p.bytes().all(|b| b.is_ascii_digit()) { p.parse().ok() } else { None };
    let port = port.map_or(Some(DEFAULT_PORT), number)?;
    (!host.is_empty()).then(|| NbdAddress::Tcp(host.into(), port))
}

/// Percent-decoding (RFC 3986 §2.1).
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(digits[0])? << 4 | digit(digits[1])?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

impl fmt::Display for NbdTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            NbdAddress::Tcp(host, port) if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{}", self.export)
            }
            NbdAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{}", self.export),
            NbdAddress::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_as_the_specification_shows_them() {
        let parse = |uri: &str| uri.parse::<NbdTarget>().unwrap();
        let tcp = |host: &str, port, export: &str| NbdTarget {
            address: NbdAddress::Tcp(host.into(), port),
            export: export.into(),
        };
        assert_eq!(parse("nbd://example.com"), tcp("example.com", 10809, ""));
        assert_eq!(parse("nbd://example.com:10810/disk%20one"), tcp("example.com", 10810, "disk one"));
        assert_eq!(parse("nbd://[::1]:9/"), tcp("::1", 9, ""));
        let unix = parse("nbd+unix:///export?socket=/tmp/nbd.sock");
        assert_eq!(
            unix,
            NbdTarget { address: NbdAddress::Unix("/tmp/nbd.sock".into()), export: "export".into() }
        );
        assert_eq!(unix.to_string().parse::<NbdTarget>().unwrap(), unix);
    }

    #[test]
    fn text_that_is_no_uri_is_refused_with_a_reason() {
        for (uri, why) in [
            ("example.com", "scheme"),
            ("nbds://example.com", "TLS"),
            ("nbd://", "host"),
            ("nbd://h:port/", "port"),
            ("nbd+unix:///x", "socket"),
            ("nbd://h:+10809/", "port"),
            ("nbd://[::1]10809/", "port"),
            ("nbd://h/%+f", "percent-encoded"),
            ("nbd://h/%f", "percent-encoded"),
            ("http://x/", "neither"),
        ] {
            let error = uri.parse::<NbdTarget>().unwrap_err().to_string();
            assert!(error.contains(why), "{uri}: {error}");
        }
    }
}
