//! Tests the NBD client against common servers.

use extant_block::{
    Bio, BioFlags, Buf, Device, IoErrorKind, NbdDevice, NbdError, NbdOptions, Op, Sector, execute, flush,
    read, write,
};
use extant_rt::{Nanos, RealConfig, Rng, Rt};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// A server in the foreground; killed when dropped.
struct Server {
    child: Child,
}

impl Server {
    /// Starts the server; `None`, with a message, if it is not installed.
    fn start(program: &str, args: &[&str]) -> Option<Self> {
        match Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => Some(Self { child }),
            Err(_) => {
                println!("skipped: {program} is not installed");
                None
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn world() -> Rt {
    Rt::real(RealConfig::default())
}

/// Connects as soon as the server listens.
fn connect(rt: &Rt, uri: &str, options: NbdOptions) -> NbdDevice {
    let target = uri.parse().unwrap();
    let deadline = rt.now() + Nanos::from_secs(20);
    loop {
        let error = match rt.block_on(NbdDevice::connect(rt, &target, options)).unwrap() {
            Ok(device) => return device,
            Err(error) => error,
        };
        let is_early = matches!(error, NbdError::Io(_) | NbdError::Closed | NbdError::Silent);
        assert!(is_early && rt.now() < deadline, "{uri}: {error}");
        rt.block_on(rt.sleep(Nanos::from_millis(10))).unwrap();
    }
}

/// The error message of a server that listens and refuses the client. A socket's name appears at
/// `bind`, before `listen`; the kernel refuses a connection in between, and this retries it.
fn refusal(rt: &Rt, uri: &str) -> String {
    let target = uri.parse().unwrap();
    let deadline = rt.now() + Nanos::from_secs(20);
    loop {
        match rt.block_on(NbdDevice::connect(rt, &target, NbdOptions::default())).unwrap() {
            Ok(_) => panic!("{uri} takes the connection"),
            Err(NbdError::Io(_)) if rt.now() < deadline => {}
            Err(error) => return error.to_string(),
        }
        rt.block_on(rt.sleep(Nanos::from_millis(10))).unwrap();
    }
}

fn unix(dir: &Path) -> (PathBuf, String) {
    let socket = dir.join("sock");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    (socket, uri)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 7 + i % 251) as u8).collect()
}

/// Compares random operations, many at a time on ranges that do not overlap, with an array.
fn behaves_like_an_array(rt: &Rt, device: &dyn Device, seed: u64) {
    let mut rng = Rng::new(seed);
    let capacity = device.limits().capacity_bytes;
    let mut array = rt.block_on(read(device, Sector(0), capacity as usize)).unwrap().unwrap().to_vec();
    for _ in 0..30 {
        let lanes = 16;
        let lane_sectors = capacity / 512 / lanes;
        let bios: Vec<_> = (0..lanes)
            .map(|lane| {
                let from = rng.below(lane_sectors);
                let sectors = 1 + rng.below((lane_sectors - from).min(600));
                let start = Sector(lane * lane_sectors + from);
                let stamp = rng.below(256);
                let fill: Vec<u8> = (0..sectors * 512).map(|i| (stamp + i / 512 + i % 13) as u8).collect();
                let mut bio = match rng.below(8) {
                    0..4 => Bio::new(Op::Read, start, vec![Buf::zeroed(fill.len()).into()]),
                    4..7 => Bio::new(Op::Write, start, vec![Buf::from_slice(&fill).into()]),
                    _ => Bio::range(Op::WriteZeroes, start, sectors * 512),
                };
                if bio.op != Op::Read {
                    bio.flags = BioFlags::from_bits_truncate(rng.below(32) as u8);
                }
                execute(device, bio)
            })
            .collect();
        for ended in bios {
            let (bio, result) = rt.block_on(ended).unwrap();
            result.unwrap();
            let at = bio.start.0 as usize * 512;
            let range = at..at + bio.bytes as usize;
            match bio.op {
                Op::Read => assert!(bio.segments[0].as_slice() == &array[range]),
                Op::Write => array[range].copy_from_slice(bio.segments[0].as_slice()),
                _ => array[range].fill(0),
            }
        }
    }
    rt.block_on(flush(device)).unwrap().unwrap();
    let end = rt.block_on(read(device, Sector(0), capacity as usize)).unwrap().unwrap();
    assert!(end[..] == array);
}

#[test]
fn nbdkit_over_a_unix_socket() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let file = dir.path().join("disk");
    std::fs::write(&file, pattern(16 << 20)).unwrap();
    let socket = socket.to_str().unwrap();
    let args = ["-f", "-U", socket, "file", file.to_str().unwrap()];
    let Some(_server) = Server::start("nbdkit", &args) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    assert_eq!(device.connections(), 4, "nbdkit's file plugin allows several");
    assert!(device.limits().volatile_cache && !device.limits().read_only);
    behaves_like_an_array(&rt, &device, 1);
    rt.block_on(write(&device, Sector(100), Buf::from_slice(&[0x5a; 4096]))).unwrap().unwrap();
    rt.block_on(flush(&device)).unwrap().unwrap();
    drop(device);
    assert!(std::fs::read(&file).unwrap()[51200..][..4096].iter().all(|&b| b == 0x5a));
}

#[test]
fn nbdkit_over_tcp_without_write_zeroes() {
    let rt = world();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let args = ["-f", "-i", "127.0.0.1", "-p", &port, "--filter=nozero", "memory", "4M"];
    let Some(_server) = Server::start("nbdkit", &args) else { return };
    let device = connect(&rt, &format!("nbd://127.0.0.1:{port}"), NbdOptions::default());
    behaves_like_an_array(&rt, &device, 2);
}

#[test]
fn qemu_nbd_with_structured_replies_and_holes() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let image = dir.path().join("disk.qcow2");
    let create =
        Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("64M").status();
    if !create.is_ok_and(|status| status.success()) {
        return println!("skipped: qemu-img is not installed");
    }
    let socket = socket.to_str().unwrap();
    let args = ["-k", socket, "-f", "qcow2", "-t", "--discard=unmap", image.to_str().unwrap()];
    let Some(_server) = Server::start("qemu-nbd", &args) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    rt.block_on(write(&device, Sector(40), Buf::from_slice(&[3; 4096]))).unwrap().unwrap();
    // Longer than the largest request, mostly holes.
    let all = rt.block_on(read(&device, Sector(0), 64 << 20)).unwrap().unwrap();
    assert!(all.iter().enumerate().all(|(i, &b)| b == if (20480..24576).contains(&i) { 3 } else { 0 }));
    let discard = Bio::range(Op::Discard, Sector(0), 1 << 20);
    rt.block_on(execute(&device, discard)).unwrap().1.unwrap();
    behaves_like_an_array(&rt, &device, 3);
    drop(device);
    let check = Command::new("qemu-img").args(["check", "-q", "-U"]).arg(&image).status().unwrap();
    assert!(check.success(), "qemu-img check finds nothing wrong");
}

#[test]
fn servers_that_refuse_are_understood() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let path = socket.to_str().unwrap();
    let Some(mut server) = Server::start("nbdkit", &["-f", "-r", "-U", path, "memory", "1M"]) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    let error = rt.block_on(write(&device, Sector(0), Buf::zeroed(512))).unwrap().unwrap_err();
    assert_eq!(error.kind, IoErrorKind::ReadOnly);
    drop(device);
    server.kill();
    std::fs::remove_file(&socket).unwrap();

    let Some(mut server) = Server::start("nbdkit", &["-f", "-o", "-U", path, "memory", "1M"]) else { return };
    let error = refusal(&rt, &uri);
    assert!(error.contains("newstyle"), "{error}");
    server.kill();

    let image = dir.path().join("raw");
    std::fs::write(&image, [0; 4096]).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let args = ["-k", path, "-f", "raw", "-t", "-x", "named", image.to_str().unwrap()];
    let Some(_server) = Server::start("qemu-nbd", &args) else { return };
    drop(connect(&rt, &uri.replace("///", "///named"), NbdOptions::default()));
    let connected =
        rt.block_on(NbdDevice::connect(&rt, &uri.parse().unwrap(), NbdOptions::default())).unwrap();
    let error = connected.unwrap_err().to_string();
    assert!(error.starts_with("the export '' is refused: there is no export of that name"), "{error}");
}

#[test]
fn errors_of_the_server_name_device_operation_and_sector() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let args = [
        "-f",
        "-U",
        socket.to_str().unwrap(),
        "--filter=error",
        "memory",
        "1M",
        "error-pwrite=ENOSPC",
        "error-pwrite-rate=100%",
    ];
    let Some(_server) = Server::start("nbdkit", &args) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    let error = rt.block_on(write(&device, Sector(8), Buf::zeroed(512))).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{uri}: write of 512 bytes at sector 8: No space left on device (os error 28)")
    );
    assert!(rt.block_on(read(&device, Sector(8), 512)).unwrap().is_ok(), "the connection goes on");
}

#[test]
fn a_server_that_is_killed_and_restarted_loses_nothing_silently() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let file = dir.path().join("disk");
    std::fs::write(&file, pattern(4 << 20)).unwrap();
    let args = ["-f", "-U", socket.to_str().unwrap(), "file", file.to_str().unwrap()];
    let start = || {
        let _ = std::fs::remove_file(&socket);
        Server::start("nbdkit", &args)
    };
    let Some(mut server) = start() else { return };
    let device = Arc::new(connect(&rt, &uri, NbdOptions::default()));
    rt.block_on(write(&*device, Sector(0), Buf::from_slice(&[1; 4096]))).unwrap().unwrap();
    server.kill();
    // In flight while there is no server: they wait for it.
    let waiting: Vec<_> = (0..64).map(|i| read(&*device, Sector(8 + i * 8), 4096)).collect();
    let write_waiting = write(&*device, Sector(4096), Buf::from_slice(&[2; 4096]));
    server = start().unwrap();
    for (i, data) in waiting.into_iter().enumerate() {
        let at = 4096 + i * 4096;
        assert!(rt.block_on(data).unwrap().unwrap()[..] == pattern(4 << 20)[at..at + 4096]);
    }
    rt.block_on(write_waiting).unwrap().unwrap();
    // The first write was acknowledged by a server that died before a flush: the flush must not
    // claim that it is safe.
    let error = rt.block_on(flush(&*device)).unwrap().unwrap_err();
    assert_eq!(error.op, Op::Flush);
    assert!(error.to_string().contains("writes that were not flushed"), "{error}");
    rt.block_on(flush(&*device)).unwrap().unwrap();
    behaves_like_an_array(&rt, &*device, 4);
    server.kill();
}

#[test]
fn a_server_that_stays_away_fails_bios_and_may_come_back_later() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let args = ["-f", "-U", socket.to_str().unwrap(), "memory", "1M"];
    let Some(mut server) = Server::start("nbdkit", &args) else { return };
    let options = NbdOptions { reconnect_for: Nanos::from_millis(50), ..NbdOptions::default() };
    let device = connect(&rt, &uri, options);
    server.kill();
    let reads: Vec<_> = (0..20).map(|i| read(&device, Sector(i), 512)).collect();
    for (i, ended) in reads.into_iter().enumerate() {
        let error = rt.block_on(ended).unwrap().unwrap_err();
        assert!(matches!(error.kind, IoErrorKind::Gone(_)), "{error}");
        assert_eq!((error.device.as_str(), error.start), (uri.as_str(), Sector(i as u64)));
    }
    std::fs::remove_file(&socket).unwrap();
    let _server = Server::start("nbdkit", &args).unwrap();
    while !socket.exists() {
        std::thread::yield_now();
    }
    // Sometimes a line notices the end of the old connection only with its next bio.
    let again = (0..100).any(|_| rt.block_on(read(&device, Sector(0), 512)).unwrap().is_ok());
    assert!(again);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let args = ["-f", "-U", socket.to_str().unwrap(), "--filter=delay", "memory", "1M", "rdelay=60"];
    let Some(_server) = Server::start("nbdkit", &args) else { return };
    // This is long enough for a busy machine to run the server in between.
    let options = NbdOptions { answer_within: Nanos::from_secs(2), ..NbdOptions::default() };
    let device = connect(&rt, &uri, options);
    let error = rt.block_on(read(&device, Sector(8), 512)).unwrap().unwrap_err();
    assert_eq!(error.kind, IoErrorKind::TimedOut);
    rt.block_on(write(&device, Sector(8), Buf::zeroed(512))).unwrap().unwrap();
}

#[test]
fn a_server_that_never_comes_to_the_point_is_given_up() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let listener = UnixListener::bind(&socket).unwrap();
    let chatter = rt.spawn_blocking("server", move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        // Refuses structured replies; then keeps sending information about the export, but never
        // its size.
        let reply = |option: u8, kind: u32, data: &[u8]| {
            let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
            reply.extend([0, 0, 0, option]);
            reply.extend(kind.to_be_bytes());
            reply.extend((data.len() as u32).to_be_bytes());
            reply.extend(data);
            reply
        };
        stream.write_all(&reply(8, 1 << 31 | 1, &[])).unwrap();
        while stream.write_all(&reply(7, 3, &[0, 1, b'x'])).is_ok() {}
    });
    let options = NbdOptions { answer_within: Nanos::from_millis(100), ..NbdOptions::default() };
    let error = rt.block_on(NbdDevice::connect(&rt, &uri.parse().unwrap(), options)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the server does not answer");
    rt.block_on(chatter).unwrap().unwrap();
}

#[test]
fn a_server_that_accepts_no_client_is_given_up() {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    };
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let address = SocketAddrUnix::new(socket.as_path()).unwrap();
    let new = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let server = new(SocketFlags::empty());
    bind(&server, &address).unwrap();
    listen(&server, 1).unwrap();
    // Other clients came first.
    let mut others = Vec::new();
    loop {
        let other = new(SocketFlags::NONBLOCK);
        match connect(&other, &address) {
            Ok(()) => others.push(other),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    let options = NbdOptions { answer_within: Nanos::from_millis(100), ..NbdOptions::default() };
    let error = rt.block_on(NbdDevice::connect(&rt, &uri.parse().unwrap(), options)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the server does not answer");
}

/// Runs `work` on a thread of its own. If it hangs, the test fails instead of hanging.
#[expect(clippy::disallowed_methods, reason = "this needs a thread outside every world")]
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    ended.recv_timeout(std::time::Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what} hangs"))
}

#[test]
fn a_lost_connection_fails_bios_once_the_world_takes_no_more_tasks() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let args = ["-f", "-U", socket.to_str().unwrap(), "memory", "1M"];
    let Some(mut server) = Server::start("nbdkit", &args) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    assert!(rt.shutdown(Nanos::from_secs(10)).in_flight.is_empty());
    rt.block_on(write(&device, Sector(0), Buf::zeroed(4096))).unwrap().unwrap();
    server.kill();
    // Make more than one write: the device may find a connection broken by the bio in flight, or
    // only before the next one.
    let errors = ends("a write", move || {
        let writes: Vec<_> = (0..64).map(|n| write(&device, Sector(n * 8), Buf::zeroed(4096))).collect();
        let errors = writes.into_iter().map(|write| rt.block_on(write).unwrap().unwrap_err());
        let errors: Vec<_> = errors.collect();
        drop(device);
        errors
    });
    for error in errors {
        assert!(matches!(error.kind, IoErrorKind::Gone(_)), "{error}");
        assert!(error.to_string().ends_with("the device is gone: its world has ended"), "{error}");
    }
}

#[test]
fn a_world_that_ends_while_a_connection_is_made_anew_fails_what_waits_for_it() {
    let rt = world();
    let dir = tempfile::tempdir().unwrap();
    let (socket, uri) = unix(dir.path());
    let args = ["-f", "-U", socket.to_str().unwrap(), "memory", "1M"];
    let Some(mut server) = Server::start("nbdkit", &args) else { return };
    let device = connect(&rt, &uri, NbdOptions::default());
    server.kill();
    let waiting = write(&device, Sector(0), Buf::zeroed(4096));
    // The device would retry for half a minute; the shutdown does not wait for it.
    assert!(rt.shutdown(Nanos::ZERO).in_flight.iter().all(|task| task.starts_with("nbd ")));
    let error = ends("the write", move || {
        let error = rt.block_on(waiting).unwrap().unwrap_err();
        drop(device);
        error
    });
    assert!(matches!(error.kind, IoErrorKind::Gone(_)), "{error}");
}
