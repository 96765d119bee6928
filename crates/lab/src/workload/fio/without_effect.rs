//! fio options that have no effect here, and which options take the next word of a command line.

/// Options that are flags and never take the next word of a command line (fio's source:
/// `FIO_OPT_STR_SET`, and the flags among its own options).
const FLAGS: [&str; 21] = [
    "bs_unaligned",
    "create_only",
    "exitall",
    "exitall_on_error",
    "fixedbufs",
    "group_reporting",
    "hipri",
    "minimal",
    "new_group",
    "nonvectored",
    "norandommap",
    "readonly",
    "refill_buffers",
    "registerfiles",
    "sqthread_poll",
    "stonewall",
    "thread",
    "time_based",
    "uncached",
    "wait_for_previous",
    "zero_buffers",
];

/// Whether an option without a value of its own takes the next word of a command line.
pub(super) fn takes_a_word(key: &str) -> bool {
    !FLAGS.contains(&key)
}

/// Options about how fio generates, verifies, counts or reports data, or how a host places memory
/// and threads.
///
/// None of this is modelled, and none of it lies between a job and its device here.
pub const WITHOUT_EFFECT: [&str; 100] = [
    "alloc-size",
    "allow_file_create",
    "allow_mounted_write",
    "allrandrepeat",
    "append-terse",
    "bandwidth-log",
    "bs_unaligned",
    "buffer_compress_chunk",
    "buffer_compress_percentage",
    "buffer_pattern",
    "bwavgtime",
    "clat_percentiles",
    "clocksource",
    "continue_on_error",
    "cpumask",
    "cpus_allowed",
    "cpus_allowed_policy",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "dedupe_percentage",
    "description",
    "disable_bw",
    "disable_bw_measurement",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "error_dump",
    "eta",
    "eta-interval",
    "eta-newline",
    "exitall",
    "exitall_on_error",
    "fallocate",
    "file_service_type",
    "fixedbufs",
    "gid",
    "gtod_cpu",
    "gtod_reduce",
    "hipri",
    "hugepage-size",
    "idle-prof",
    "ignore_error",
    "iodepth_batch",
    "iodepth_batch_complete",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_batch_submit",
    "iodepth_low",
    "iomem",
    "iomem_align",
    "iopsavgtime",
    "lat_percentiles",
    "latency-log",
    "lockmem",
    "log_avg_msec",
    "log_compression",
    "log_compression_cpus",
    "log_entries",
    "log_hist_msec",
    "log_issue_time",
    "log_max_value",
    "log_offset",
    "log_store_compressed",
    "log_unix_epoch",
    "max-jobs",
    "mem",
    "mem_align",
    "nice",
    "nonvectored",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "openfiles",
    "overwrite",
    "per_job_logs",
    "percentile_list",
    "random_generator",
    "randrepeat",
    "readonly",
    "refill_buffers",
    "registerfiles",
    "scramble_buffers",
    "significant_figures",
    "slat_percentiles",
    "sqthread_poll",
    "sqthread_poll_cpu",
    "status-interval",
    "terse-version",
    "thread",
    "uid",
    "unified_rw_reporting",
    "unlink",
    "userspace_reap",
    "warnings-fatal",
    "write_bw_log",
    "write_hist_log",
    "write_iops_log",
    "write_lat_log",
    "zero_buffers",
];

/// Options that have no effect with some values and an unsupported meaning with all others.
pub(super) fn has_no_effect(key: &str, value: &str) -> Option<bool> {
    let harmless: &[&str] = match key {
        "verify" => &["0", "none", "null"],
        "do_verify" | "verify_fatal" | "verify_dump" | "pre_read" | "percentage_random" | "softrandommap" => {
            &["0"]
        }
        "nrfiles" => &["1"],
        "random_distribution" => &["random"],
        "zonemode" => &["none"],
        "kb_base" => &["1024"],
        "unit_base" => &["0", "1", "8"],
        "bs_is_seq_rand" => &["0"],
        _ => return WITHOUT_EFFECT.contains(&key).then_some(true),
    };
    Some(harmless.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_sorted_and_say_a_thing_once() {
        assert!(FLAGS.is_sorted() && WITHOUT_EFFECT.is_sorted());
        assert!(WITHOUT_EFFECT.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
