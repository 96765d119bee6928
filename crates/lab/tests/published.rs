//! Published fio command lines must run unchanged on the modelled NVMe disk.
//!
//! Only file names are moved to that disk, and run times are shortened for the test.

use extant_lab::{Policy, fio, on_machine, report};
use extant_rt::Nanos;
use extant_sim::Machine;
use std::path::Path;

/// The source of each command line, and its options.
const LINES: [(&str, &str); 31] = [
    (
        "etcd: IBM, \"Using fio to tell whether your storage is fast enough for etcd\"",
        "--rw=write --ioengine=sync --fdatasync=1 --directory=/nvme0n1/d --size=22m --bs=2300 --name=mytest",
    ),
    (
        "GCP: persistent disks, write IOPS",
        "--name=write_iops --directory=/nvme0n1/d --size=10G --time_based --runtime=5m --ramp_time=2s --ioengine=libaio \
         --direct=1 --verify=0 --bs=4K --iodepth=256 --rw=randwrite --group_reporting=1 --iodepth_batch_submit=256 \
         --iodepth_batch_complete_max=256",
    ),
    (
        "DigitalOcean and Arch wiki: reads and writes 75 to 25",
        "--randrepeat=1 --ioengine=libaio --direct=1 --gtod_reduce=1 --name=test --filename=/nvme0n1/random_read_write.fio \
         --bs=4k --iodepth=64 --size=4G --readwrite=randrw --rwmixread=75",
    ),
    (
        "yabs",
        "--name=rand_rw_4k --ioengine=libaio --rw=randrw --rwmixread=50 --bs=4k --iodepth=64 --numjobs=2 --size=2G --runtime=30 \
         --gtod_reduce=1 --direct=1 --filename=/nvme0n1/test.fio --group_reporting --minimal",
    ),
    (
        "Azure: latency",
        "--name=randread --filename=/dev/nvme0n1 --direct=1 --rw=randread --bs=4k --ioengine=libaio --iodepth=256 --runtime=120 \
         --numjobs=4 --time_based --group_reporting --eta-newline=1",
    ),
    (
        "Oracle OCI",
        "--filename=/dev/nvme0n1 --direct=1 --rw=randrw --bs=4k --ioengine=libaio --iodepth=256 --runtime=120 --numjobs=4 \
         --time_based --group_reporting --name=iops-test-job --eta-newline=1 --readonly",
    ),
    (
        "AWS EBS",
        "--directory=/mnt/nvme0n1 --ioengine=psync --name fio_test_file --direct=1 --rw=randwrite --bs=16k --size=1G --numjobs=16 \
         --time_based --runtime=180 --group_reporting --norandommap",
    ),
    (
        "peekSSD",
        "--name=iops_4k_RR --filename=/dev/nvme0n1 --numjobs=4 --bs=4k --runtime=4500 --ioengine=libaio --direct=1 --rw=randread \
         --group_reporting --iodepth=32 --time_based --randrepeat=0 --norandommap --refill_buffers",
    ),
    (
        "S. Han: Ceph journals",
        "--filename=/dev/nvme0n1 --direct=1 --sync=1 --rw=write --bs=4k --numjobs=1 --iodepth=1 --runtime=60 --time_based \
         --group_reporting --name=journal-test",
    ),
    (
        "CachyOS-Settings 50",
        "--filename=/mnt/test.fio --size=8GB --direct=1 --rw=randrw --bs=4k --ioengine=libaio --iodepth=256 --runtime=120 \
         --numjobs=4 --time_based --group_reporting --name=iops-test-job --eta-newline=1",
    ),
    (
        "OpenShift: etcd-perf",
        "--rw=write --ioengine=sync --fdatasync=1 --directory=/nvme0n1/etcd --size=100m --bs=8000 --name=etcd_perf \
         --output-format=json --runtime=60 --time_based=1",
    ),
    (
        "rook",
        "--name=benchtest --size=50m --filename=/volume/test --direct=1 --rw=randrw --ioengine=libaio --bs=4k --iodepth=16 \
         --numjobs=1 --time_based --runtime=60",
    ),
    (
        "kubernetes.net: etcd",
        "-filename=/dev/nvme0n1 -direct=1 -iodepth 1 -thread -rw=write -ioengine=psync -bs=4k -size=60G -numjobs=64 -runtime=10 \
         -group_reporting -name=file",
    ),
    (
        "fio(1): a flag of the report",
        "--name=x --size=1g --rw=randread --eta=never --bs=8k --nrfiles=1 --exitall",
    ),
    (
        "a mix given by its writes",
        "--name=mix --filename=/dev/nvme0n1 --rw=randrw --rwmixwrite=30 --direct=1 --ioengine=io_uring --hipri --fixedbufs \
         --registerfiles --sqthread_poll=0 --iodepth=32 --size=50% --cpus_allowed=0-3 --numa_cpu_nodes=0",
    ),
    (
        "a log with O_DSYNC",
        "--name=wal --filename=/nvme0n1/wal --size=1g --rw=write --bs=16k --sync=dsync --direct=1 --ioengine=psync --fallocate=none",
    ),
    (
        "a rate in I/Os",
        "--name=slow --size=1g --filename=/nvme0n1/s --rw=randread --rate_iops=1000 --direct=1 --log_avg_msec=1000 \
         --write_lat_log=out --percentile_list=50:99",
    ),
    (
        "twice over",
        "--name=again --size=8m --io_size=4m --loops=2 --filename=/nvme0n1/a --rw=write --bs=1m --end_fsync=1",
    ),
    (
        "GCP: persistent disks, write throughput",
        "--name=write_throughput --directory=/nvme0n1/d --numjobs=16 --size=10G --time_based --runtime=5m --ramp_time=2s \
         --ioengine=libaio --direct=1 --verify=0 --bs=1M --iodepth=64 --rw=write --group_reporting=1 \
         --iodepth_batch_submit=64 --iodepth_batch_complete_max=64",
    ),
    (
        "AWS: initialize an EBS volume",
        "--filename=/dev/nvme0n1 --rw=read --bs=1M --iodepth=32 --ioengine=libaio --direct=1 --name=volume-initialize",
    ),
    (
        "Oracle OCI: throughput",
        "--filename=/dev/nvme0n1 --direct=1 --rw=randread --bs=256k --ioengine=libaio --iodepth=64 --runtime=120 --numjobs=4 \
         --time_based --group_reporting --name=throughput-test-job --eta-newline=1 --readonly",
    ),
    (
        "Alibaba Cloud",
        "-direct=1 -iodepth=128 -rw=randwrite -ioengine=libaio -bs=4k -size=1G -numjobs=1 -runtime=1000 -group_reporting \
         -filename=/dev/nvme0n1 -name=Rand_Write_Testing",
    ),
    (
        "Proxmox: Ceph benchmark",
        "--ioengine=libaio --filename=/dev/nvme0n1 --direct=1 --sync=1 --rw=write --bs=4K --numjobs=1 --iodepth=1 --runtime=60 \
         --time_based --name=fio",
    ),
    (
        "V. Filippov: Ceph performance",
        "-ioengine=libaio -sync=1 -direct=1 -invalidate=1 -name=test -bs=4k -iodepth=1 -rw=write -runtime=60 -filename=/dev/nvme0n1",
    ),
    (
        "J. Salter, Ars Technica: one process, as a desktop writes",
        "--name=random-write --ioengine=posixaio --rw=randwrite --bs=4k --size=4g --numjobs=1 --iodepth=1 --runtime=60 \
         --time_based --end_fsync=1",
    ),
    (
        "dbench: sequential reads",
        "--randrepeat=0 --verify=0 --ioengine=libaio --direct=1 --gtod_reduce=1 --name=read_seq --filename=/data/fiotest --bs=1M \
         --iodepth=16 --size=500M --readwrite=read --time_based --ramp_time=2s --runtime=15s --thread --numjobs=4 \
         --offset_increment=500M",
    ),
    (
        "NVMe over fabrics",
        "--time_based --name=benchmark --size=30G --runtime=30 --filename=/dev/nvme0n1 --ioengine=libaio --randrepeat=0 \
         --iodepth=128 --direct=1 --invalidate=1 --verify=0 --verify_fatal=0 --numjobs=4 --rw=randread --blocksize=4k \
         --group_reporting",
    ),
    (
        "KDiskMark",
        "--output-format=json --ioengine=libaio --direct=1 --randrepeat=0 --refill_buffers --end_fsync=1 --rwmixread=70 \
         --filename=/nvme0n1/.kdiskmark.tmp --name=rw --size=1024m --zero_buffers=0 --bs=1024Ki --runtime=5 --rw=rw --iodepth=8 \
         --numjobs=1",
    ),
    (
        "fio: examples/tiobench-example.fio",
        "--direct=1 --size=512m --bsrange=4k-4k --timeout=60 --numjobs=4 --name=f1 --rw=write --name=f2 --stonewall --rw=randwrite \
         --name=f3 --stonewall --rw=read --name=f4 --stonewall --rw=randread",
    ),
    (
        "kbench: processors' idle time on the side",
        "--name=rand-read-iops --filename=/dev/nvme0n1 --idle-prof=percpu --randrepeat=0 --verify=0 --ioengine=libaio --direct=1 \
         --time_based --ramp_time=20s --runtime=60s --numjobs=8 --iodepth=32 --bs=4k --size=30G --rw=randread --norandommap",
    ),
    (
        "a name and values apart",
        "--name job1 --rw randwrite --bs 4k --size 256m --directory /mnt/nvme0n1 --iodepth 8 --ioengine libaio --direct 1",
    ),
];

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_published_line_starts() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/nvme-2017.toml");
    let machine = Machine::load(&file).unwrap();
    for (source, line) in LINES {
        let parsed =
            fio::command_line(&words(line), |path| Err(format!("{} is no job file", path.display())));
        let parsed = parsed.unwrap_or_else(|error| panic!("{source}: {error}"));
        let mut jobs = parsed.jobs;
        for job in &mut jobs {
            job.runtime = Some(Nanos::from_millis(20));
            job.ramp = Nanos::ZERO;
        }
        let outcome = on_machine(&jobs, machine.clone(), &Policy::default(), 1, None);
        let outcome = outcome.unwrap_or_else(|error| panic!("{source}: {error}"));
        for report in &outcome.results {
            let measured = &report.measured;
            assert!(measured.error.is_none(), "{source}: {:?}", measured.error);
            assert!(measured.read.ios + measured.write.ios > 0, "{source}: nothing was done");
        }
        let shown = report::fio_text(&outcome);
        let is_told = line.contains("--verify=0") || line.contains("--eta") || line.contains("-thread");
        assert!(!is_told || shown.contains("Options without effect here: "), "{source}: {shown}");
        for line in report::fio_terse(&outcome).lines() {
            assert_eq!(line.split(';').count(), 121, "{source}: the fields of version 3");
        }
    }
}

/// A write with O_SYNC or O_DSYNC pays for a flush if the drive's buffer is volatile, like a write
/// followed by fdatasync.
#[test]
fn a_synchronous_write_is_durable_when_it_ends() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/nvme-2017.toml");
    let settings = ["volatile_buffer=true", "flush_ns=1_500_000"].map(|setting| setting.parse().unwrap());
    let machine = Machine::load_with(&file, &settings).unwrap();
    let rate = |options: &str| {
        let line = format!(
            "--name=a --filename=/dev/nvme0n1 --size=1g --bs=4k --rw=write --direct=1 --runtime=1 {options}"
        );
        let jobs = fio::command_line(&words(&line), |_| Err(String::new())).unwrap().jobs;
        let outcome = on_machine(&jobs, machine.clone(), &Policy::default(), 1, None).unwrap();
        outcome.results[0].measured.write.iops(outcome.results[0].measured.runtime)
    };
    let (bare, synced, flushed) = (rate(""), rate("--sync=1"), rate("--fdatasync=1"));
    assert!(bare > 20.0 * synced, "{bare} without, {synced} with sync=1");
    assert!((synced / flushed - 1.0).abs() < 0.2, "{synced} with sync=1, {flushed} with fdatasync=1");
    assert!((synced / rate("--sync=dsync") - 1.0).abs() < 0.1);
}

/// A log whose last block is rewritten until it is full is written as fast as a stream.
#[test]
fn a_block_that_is_rewritten_is_as_fast_as_a_stream() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/nvme-2017.toml");
    let machine = Machine::load(&file).unwrap();
    let rate = |size: &str| {
        let line = format!(
            "--name=a --filename=/nvme0n1/a --rw=write --bs=4k --size={size} --direct=1 --time_based --runtime=1"
        );
        let jobs = fio::command_line(&words(&line), |_| Err(String::new())).unwrap().jobs;
        let outcome = on_machine(&jobs, machine.clone(), &Policy::default(), 1, None).unwrap();
        outcome.results[0].measured.write.iops(outcome.results[0].measured.runtime)
    };
    let (same, stream) = (rate("4k"), rate("1g"));
    assert!((same / stream - 1.0).abs() < 0.03, "{same} a second for one block, {stream} for a stream");
}
