use std::io::Write;

use lzma_rust2::{LzipOptions, LzipWriter};

use super::*;

fn gpu(compute_capability: (u32, u32), driver_version: u32) -> GpuFacts {
    GpuFacts { compute_capability, driver_version, ..GpuFacts::default() }
}

fn ranked(capability: (u32, u32)) -> Vec<String> {
    ranked_by(capability, 13_000)
}

fn ranked_by(capability: (u32, u32), driver_version: u32) -> Vec<String> {
    let images = Images::default();
    let ranked = images.ranked(&gpu(capability, driver_version));
    ranked.iter().map(|image| image.target.name.clone()).collect()
}

#[test]
fn a_chip_prefers_its_cubin_then_the_newest_ptx_that_it_can_compile() {
    assert!(ranked((7, 0)).is_empty());
    assert_eq!(ranked((7, 5)), ["sm_75"]);
    assert_eq!(ranked((8, 9)), ["sm_80", "sm_75"]);
    assert_eq!(ranked((9, 0)), ["sm_90a", "sm_90", "sm_80", "sm_75"]);
    assert_eq!(ranked((12, 0)), ["sm_90", "sm_80", "sm_75"]);
}

#[test]
fn an_old_driver_error_names_the_driver_that_compiles_the_ptx() {
    assert_eq!(ranked_by((8, 6), 12_030), ["sm_80", "sm_75"]);
    assert!(ranked_by((8, 6), 12_020).is_empty());
    assert_eq!(ranked_by((9, 0), 12_020), ["sm_90a"], "machine code is not compiled");
    let images = Images::default();
    let old = gpu((8, 6), 12_020);
    assert_eq!(
        images.beyond(&old).collect::<Vec<_>>(),
        ["sm_80", "sm_75"].map(|name| {
            format!("{name} PTX: needs CUDA 12.3, driver 545; this driver has CUDA 12.2")
        })
    );
    let why = images.shortcoming(&old);
    assert_eq!(why, "a driver of CUDA 12.2 (CUDA 12.3, driver 545 or later needed)");
    let why = images.shortcoming(&gpu((6, 1), 12_020));
    assert_eq!(why, "compute capability 6.1 (7.5 or later needed)");
    assert_eq!(images.beyond(&gpu((8, 6), 13_000)).count(), 0);
}

#[test]
fn scores_order_kinds_before_generations() {
    let score = |name, kind, chip| Target::parse(name, kind).unwrap().score(chip);
    assert_eq!(score("sm_90a", Kind::Machine, (10, 0)), None, "specific code runs nowhere else");
    assert_eq!(score("sm_80", Kind::Machine, (9, 0)), None, "machine code stays in its generation");
    let own = score("sm_86", Kind::Machine, (8, 9)).unwrap();
    assert!(own > score("sm_80", Kind::Machine, (8, 9)).unwrap());
    assert!(own > score("sm_89", Kind::Ptx, (8, 9)).unwrap());
    for name in ["sm_", "sm_9", "sm_90x", "compute_90", "sm_99999"] {
        assert_eq!(Target::parse(name, Kind::Ptx), None, "{name}");
    }
}

#[test]
fn every_image_unpacks_and_states_interface_and_target() {
    for image in Images::default().all.iter() {
        let archive = image.unpack().unwrap();
        assert_eq!(archive.target, image.target);
        assert_eq!(archive.interface, interface());
        assert!(archive.codes.contains_key("embed"), "{image}");
    }
}

#[test]
fn only_hopper_cubins_have_wgmma_kernels() {
    let has_them = |capability| {
        let images = Images::default();
        let ranked = images.ranked(&gpu(capability, 13_000));
        ranked[0].unpack().unwrap().has_family(crate::lower::WARPGROUP_KERNELS)
    };
    assert!(has_them((9, 0)));
    assert_eq!([(7, 5), (8, 0), (8, 9), (12, 0)].map(has_them), [false; 4]);
}

#[test]
fn every_ptx_image_has_all_portable_kernels() {
    // Kernels for one GPU only have no PTX; every other kernel file has PTX in each PTX image.
    let names = |name: &str| {
        let images = Images::default();
        let image = images.all.iter().find(|image| image.target.name == name).unwrap();
        image.unpack().unwrap().codes.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names("sm_90"), names("sm_80"));
    assert_eq!(names("sm_80"), names("sm_75"));
    let own = names("sm_90a");
    assert!(names("sm_90").iter().all(|name| own.contains(name)));
}

/// An image in the format of `xtask kernels`.
fn image(target: &str, kind: &str, interface: &str, code: &[u8]) -> Vec<u8> {
    let manifest = format!("target {target}\nkind {kind}\ninterface {interface}\n");
    let mut bytes = Vec::new();
    for part in [b"manifest", manifest.as_bytes(), b"embed", code] {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

#[test]
fn damaged_images_are_refused_with_a_reason() {
    let whole = image("sm_90", "ptx", "1", b"text\0");
    assert!(Archive::parse(&whole).is_ok());
    for end in 0..whole.len() {
        // A cut between two records leaves a valid, smaller image; every other cut is refused.
        let cut = Archive::parse(&whole[..end]);
        assert!(cut.is_err() || cut.is_ok_and(|a| a.codes.is_empty()), "{end}");
    }
    let why = |bytes: &[u8]| Archive::parse(bytes).unwrap_err();
    assert_eq!(why(&image("sm_90", "ptx", "1", b"no zero")), "embed is damaged");
    assert_eq!(why(&image("sm_90", "cubin", "1", b"\x7fELF\x02\x01")), "embed is damaged");
    assert_eq!(why(&image("sm_90", "other", "1", b"\0")), "of unknown kind Some(\"other\")");
    assert_eq!(why(&image("gfx90", "ptx", "1", b"\0")), "for unknown target \"gfx90\"");
    assert!(Archive::unpack(b"not packed").unwrap_err().contains("no packed image"));
}

#[test]
fn cubins_with_out_of_range_tables_are_refused() {
    let archive = Images::default().ranked(&gpu((9, 0), 13_000))[0].unpack().unwrap();
    let Code::Machine(code) = &archive.codes["embed"] else { panic!("no machine code") };
    let parsed = |code: &[u8]| Archive::parse(&image("sm_90a", "cubin", "1", code));
    assert!(parsed(code).is_ok());
    assert!(parsed(&code[..code.len() / 2]).is_err());
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = LzipWriter::new(Vec::new(), LzipOptions::with_preset(1));
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn damaged_images_are_refused() {
    let text: Vec<u8> = (0..4_000_u32).flat_map(|i| (i * i).to_le_bytes()).chain([0]).collect();
    let packed = pack(&image("sm_80", "ptx", "1", b"text\0"));
    assert!(Archive::unpack(&packed).is_ok());
    for end in 0..packed.len() {
        assert!(Archive::unpack(&packed[..end]).is_err(), "cut at {end}");
    }
    let packed = pack(&image("sm_80", "cubin", "1", &text));
    for at in 0..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 16;
        assert!(Archive::unpack(&damaged).is_err(), "byte {at}");
    }
    let large = pack(&vec![0; (64 << 20) + 1]);
    assert!(Archive::unpack(&large).unwrap_err().contains("larger than 67108864 bytes"));
}

#[test]
fn found_images_are_preferred_when_as_good_and_refused_when_of_another_interface() {
    let folder = std::env::temp_dir().join(format!("walla-images-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), pack(bytes)).unwrap();
    };
    write("good.bin", &image("sm_80", "ptx", interface(), b"text\0"));
    write("newer.bin", &image("sm_86", "ptx", interface(), b"text\0"));
    write("stale.bin", &image("sm_80", "ptx", "0.0", b"text\0"));
    write("ignored.txt", b"");
    let images = Images::find(&[folder.clone(), folder.join("absent.bin"), PathBuf::new()]);
    let ranked: Vec<_> =
        images.ranked(&gpu((8, 9), 13_000)).iter().map(ToString::to_string).collect();
    let path = |name: &str| folder.join(name).display().to_string();
    assert_eq!(ranked[0], format!("sm_86 PTX from {}", path("newer.bin")));
    assert_eq!(ranked[1], format!("sm_80 PTX from {}", path("good.bin")));
    assert_eq!(ranked[2], "sm_80 PTX");
    assert_eq!(images.refused.len(), 2, "{:?}", images.refused);
    assert!(images.refused[0].contains("stale.bin: of interface 0.0, this program has"));
    assert!(images.refused[1].contains("absent.bin"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_beyond_the_limit_are_skipped_and_reported() {
    let folder = std::env::temp_dir().join(format!("walla-many-images-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for i in 0..MAX_FILES + 3 {
        std::fs::write(folder.join(format!("{i:03}.bin")), b"").unwrap();
    }
    let found = files(&folder);
    let read: Vec<_> = found.iter().filter_map(|file| file.as_ref().ok()).collect();
    assert_eq!(read.len(), MAX_FILES);
    assert_eq!(read[0].file_name().unwrap(), "000.bin");
    assert!(read.is_sorted());
    let told = found.last().unwrap().as_ref().unwrap_err();
    assert!(told.ends_with("3 files beyond 64 are not read"), "{told}");
    std::fs::remove_dir_all(&folder).unwrap();
}
