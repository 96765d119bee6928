//! Directory, tar or OCI layout to volume; volume to tar.
