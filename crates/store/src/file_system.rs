//! What a file system's magic number says of its syncs and locks. Pure; asking the system is `disk.rs`.

/// How far a file system may be trusted with a queue_dir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// Syncs reach a device of this machine, and the kernel's locks exclude everybody.
    Local,
    /// As local, but gone after a reboot.
    Memory,
    /// Across a network or in user space: locks and syncs are another program's promise.
    Network(&'static str),
}

impl FileSystem {
    /// From `f_type` of statfs(2). What is not known is taken as local.
    pub(crate) fn of(magic: u32) -> FileSystem {
        match magic {
            0x0102_1994 | 0x8584_58f6 => FileSystem::Memory,
            0x0000_6969 => FileSystem::Network("NFS"),
            0x0000_517b | 0xff53_4d42 | 0xfe53_4d42 => FileSystem::Network("SMB"),
            0x0102_1997 => FileSystem::Network("9p"),
            // sshfs, s3fs, GlusterFS, virtiofs; the number does not tell them apart.
            0x6573_5546 => FileSystem::Network("FUSE"),
            0x00c3_6400 => FileSystem::Network("CephFS"),
            0x0bd0_0bd0 => FileSystem::Network("Lustre"),
            0x5346_414f | 0x6b41_4653 => FileSystem::Network("AFS"),
            0x7375_7245 => FileSystem::Network("Coda"),
            0x4750_4653 => FileSystem::Network("GPFS"),
            0x1983_0326 => FileSystem::Network("BeeGFS"),
            0x2003_0528 => FileSystem::Network("OrangeFS"),
            0x786f_4256 => FileSystem::Network("a shared folder of VirtualBox"),
            0xbacb_acbc => FileSystem::Network("a shared folder of VMware"),
            _ => FileSystem::Local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_across_a_network_is_told_from_what_is_local() {
        let local = [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0x794c_7630, 0xf2f5_2010, 0];
        let memory = [0x0102_1994, 0x8584_58f6];
        let network = [(0x6969, "NFS"), (0xff53_4d42, "SMB"), (0xfe53_4d42, "SMB"), (0x6573_5546, "FUSE")];

        assert!(local.iter().all(|magic| FileSystem::of(*magic) == FileSystem::Local));
        assert!(memory.iter().all(|magic| FileSystem::of(*magic) == FileSystem::Memory));
        for (magic, kind) in network {
            assert_eq!(FileSystem::of(magic), FileSystem::Network(kind));
        }
    }
}
