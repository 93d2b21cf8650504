use std::collections::BTreeSet;
use std::fs;

use walla_types::TensorType;

use super::*;
use crate::kernel_source::KernelSource;
use crate::lower::gemm_sm90::schedule::CTA_TILES_SMALL;
use crate::lower::kernel::SHARED_STATIC;
use crate::lower::product::{on_tensor_cores, records};
use crate::repack::{self, Layout};

fn gpu(shared_bytes_per_block_optin: u64) -> GpuFacts {
    GpuFacts { multiprocessors: 132, shared_bytes_per_block_optin, ..GpuFacts::default() }
}

fn cut(
    tiles: u32,
    segments: u32,
    rows: u32,
    record_bytes: u32,
    reducer: SplitKReducer,
) -> (Order, Option<Sm90Tiling>) {
    let gpu = gpu(232_448);
    let order = Order::of(tiles, segments, &gpu);
    let product = Product {
        record_bytes,
        segments,
        tiles,
        tiles_of_op: tiles,
        rows,
        group_rows: rows.min(8),
    };
    (order, Sm90Tiling::of(&product, &order, &gpu, reducer))
}

#[test]
fn every_product_of_more_than_eight_rows_fits() {
    for record_bytes in records() {
        for segments in [1, 5, 8, 12, 16, 20, 24, 32, 64, 112, 224, 416] {
            for tiles in [1, 4, 33, 192, 511, 512, 1_024, 1_792, 3_584, 16_388] {
                for rows in [9, 16, 17, 48, 64, 65, 128, 512] {
                    fits((tiles, segments, rows, record_bytes), SplitKReducer::None);
                    fits((tiles, segments, rows, record_bytes), SplitKReducer::Kernel);
                    fits((tiles, segments, rows, record_bytes), SplitKReducer::Reader);
                }
            }
        }
    }
}

fn fits((tiles, segments, rows, record_bytes): (u32, u32, u32, u32), reducer: SplitKReducer) {
    let (order, tiling) = cut(tiles, segments, rows, record_bytes, reducer);
    // With few rows, these kernels do not take many tiles with several splits, nor more splits than
    // a cluster has blocks.
    let most = if tiles >= TILES_MANY { 1 } else { MAX_SPLITS };
    if order.splits > most && rows < sequential::ROWS_MIN {
        assert_eq!(tiling, None);
        return;
    }
    let tiling = tiling.unwrap_or_else(|| panic!("{tiles}, {segments}, {rows}"));
    assert!(tiling.shared_bytes + SHARED_STATIC <= 232_448);
    assert!(tiling.rows * tiling.grid[1] >= rows);
    assert!((1..=MAX_DEPTH).contains(&tiling.depth));
    // One stage of x suffices only if there is only one.
    let each = if tiling.splits == Splits::Sequential { segments } else { order.split_segments };
    let is_one = each <= tiling.x_stage_segments() && tiling.splits != Splits::One;
    assert!(tiling.x_depth >= 2 || is_one || order.run == 1, "{tiling:?}");
    // 64 rows of x are more bytes than weights of 4 to 6 bits.
    let is_short = tiling.rows == 64 && record_bytes < 1_088;
    let producers = match tiling.splits {
        Splits::Sequential => sequential::PRODUCER_WARPS,
        splits if is_short => splits.runs_at_once(),
        _ => 1,
    };
    assert_eq!(tiling.threads, 32 * (tiling.tiles * tiling.splits.runs_at_once() + producers));
    assert_eq!(tiling.form() == "gemm_sm90_small", tiling.tiles == CTA_TILES_SMALL);
    let product =
        Product { record_bytes, segments, tiles, tiles_of_op: tiles, rows, group_rows: GROUP_ROWS };
    let to_workspace = tiling.splits == Splits::Workspace;
    assert_eq!(tiling.sums_bytes(&product, &order) > 0, to_workspace);
    assert!(!to_workspace || reducer == SplitKReducer::Kernel && order.runs == 2);
    let is_deferred = tiling.splits == Splits::Deferred;
    assert!(
        !is_deferred || reducer == SplitKReducer::Reader && order.runs == 1 && order.splits > 1
    );
    if let Splits::InCluster(cluster) = tiling.splits {
        assert_eq!(cluster, order.splits);
        assert!(tiling.grid[0].is_multiple_of(cluster));
    }
}

#[test]
fn blocks_are_small_if_all_are_resident() {
    // Gate and up of Llama 3.2 1B, and its head.
    let form = |tiles, rows| cut(tiles, 16, rows, 640, SplitKReducer::None).1.unwrap();
    assert_eq!((form(1_024, 16).form(), form(1_024, 16).grid), ("gemm_sm90_small", [256, 1, 1]));
    assert_eq!(form(1_024, 64).form(), "gemm_sm90_persistent");
    assert_eq!(form(8_016, 16).form(), "gemm_sm90_persistent");
    assert_eq!(form(128, 16).form(), "gemm_sm90_cluster");
}

#[test]
fn the_last_wave_may_be_a_half_wave() {
    let of = |tiles, rows| {
        let tiling = cut(tiles, 20, rows, 640, SplitKReducer::None).1.unwrap();
        (tiling.form(), tiling.grid[0], tiling.full_wave_tiles)
    };
    // Gate and up of Qwen 3 4B: 132 blocks compute 1,056 of 1,216 tiles, and 40 of them four
    // more each. With few rows, half blocks divide evenly.
    assert_eq!(of(1_216, 64), ("gemm_sm90_half_wave", 132, Some(1_056)));
    assert_eq!(of(1_216, 32), ("gemm_sm90_half_wave", 132, Some(1_056)));
    assert_eq!(of(1_216, 16), ("gemm_sm90_small", 264, None));
    // Llama 3.1 8B: more than half a wave remains. Llama 3.2 1B: a single wave. Its head. Only
    // full waves.
    assert_eq!(of(1_792, 64), ("gemm_sm90_persistent", 132, None));
    assert_eq!(of(1_792, 16), ("gemm_sm90_persistent", 132, None));
    assert_eq!(of(1_024, 64), ("gemm_sm90_persistent", 128, None));
    assert_eq!(of(8_016, 64), ("gemm_sm90_persistent", 132, None));
    assert_eq!(of(2_112, 64), ("gemm_sm90_persistent", 132, None));
    for tiles in TILES_MANY..3_000 {
        for rows in [16, 32, 64, 128] {
            let tiling = cut(tiles, 20, rows, 640, SplitKReducer::None).1.unwrap();
            let Some(whole) = tiling.full_wave_tiles else { continue };
            // All blocks have the same number of full waves and at most one half wave. No such
            // kernel exists for 16 rows.
            assert!(
                tiling.rows > 16 && whole > 0 && whole.is_multiple_of(CTA_TILES * tiling.grid[0])
            );
            assert!(whole < tiles && tiles - whole <= CTA_TILES_SMALL * tiling.grid[0]);
        }
    }
}

#[test]
fn long_splits_of_many_rows_use_the_workspace_if_all_blocks_are_resident() {
    let of = |tiles, segments, rows, reducer| {
        let (order, cut) = cut(tiles, segments, rows, 640, reducer);
        (order, cut.unwrap())
    };
    let form = |tiles, segments, rows| of(tiles, segments, rows, SplitKReducer::Kernel).1.form();
    // Down of Llama 3.2 1B.
    let (order, down) = of(128, 64, 64, SplitKReducer::Kernel);
    assert_eq!((down.form(), down.grid, down.cluster()), ("gemm_sm90_workspace", [128, 1, 1], 0));
    let product = Product {
        record_bytes: 640,
        segments: 64,
        tiles: 128,
        tiles_of_op: 128,
        rows: 64,
        group_rows: 8,
    };
    assert_eq!(down.sums_bytes(&product, &order), 4 * order.splits as usize * 64 * 128 * 16);
    assert_eq!(Sm90Tiling::reduction(&product), ([32, 8, 1], 128));
    assert_eq!(of(128, 64, 64, SplitKReducer::None).1.form(), "gemm_sm90_cluster");
    // 32 rows if records are short, not fewer, and at most one block per multiprocessor.
    assert_eq!(form(128, 64, 32), "gemm_sm90_workspace");
    let long = cut(128, 64, 32, 1_088, SplitKReducer::Kernel).1.unwrap();
    assert_eq!(long.form(), "gemm_sm90_cluster");
    assert_eq!(form(128, 64, 16), "gemm_sm90_cluster");
    assert_eq!(form(128, 64, 128), "gemm_sm90_cluster");
    // Output, whose splits are short, and down of Llama 3.1 8B, which has more blocks than the
    // GPU has multiprocessors.
    assert_eq!(form(128, 16, 64), "gemm_sm90_cluster");
    assert_eq!(form(256, 112, 64), "gemm_sm90_cluster");
}

#[test]
fn many_rows_are_multiplied_sequentially_if_that_is_faster() {
    let of = |tiles, segments, rows, record| {
        cut(tiles, segments, rows, record, SplitKReducer::None).1.unwrap()
    };
    let form = |tiles, segments, rows| {
        let tiling = of(tiles, segments, rows, 640);
        (tiling.form(), tiling.rows, tiling.grid)
    };
    // Query, key and value; output; gate and up; down of Llama 3.2 1B.
    assert_eq!(form(192, 16, 512), ("gemm_sm90_wide", 128, [24, 4, 1]));
    assert_eq!(form(128, 16, 512), ("gemm_sm90_wide", 64, [16, 8, 1]));
    assert_eq!(form(1_024, 16, 512), ("gemm_sm90_wide", 128, [32, 4, 1]));
    assert_eq!(form(128, 64, 512), ("gemm_sm90_wide", 64, [16, 8, 1]));
    assert_eq!(form(1_024, 16, 256), ("gemm_sm90_wide", 128, [64, 2, 1]));
    assert_eq!(form(128, 64, 256).0, "gemm_sm90_cluster");
    assert_eq!(form(128, 16, 128).0, "gemm_sm90_cluster");
    assert_eq!(form(192, 16, 64).0, "gemm_sm90_cluster");
    // Splits that no cluster takes.
    assert_eq!(form(1_024, 64, 128).0, "gemm_sm90_wide");
    let kernels = KernelSource::read(&[
        "common/walla.cuh",
        "gemm/weight.cuh",
        "gemm/gemm_common.cuh",
        "gemm/gemm_sm90_config.cuh",
    ]);
    assert_eq!(kernels.constant("SEQUENTIAL_PRODUCER_WARPS"), sequential::PRODUCER_WARPS);
    for record in records() {
        for (tiles, rows) in [(192, 512), (128, 512), (1_024, 96)] {
            let tiling = of(tiles, 16, rows, record);
            assert_eq!(tiling.splits, Splits::Sequential);
            let n = tiling.rows;
            let rings = tiling.x_depth * kernels.call("x_stage", &[n])[0]
                + CTA_TILES * tiling.depth * 2 * record;
            let sums = CTA_TILES * 4 * kernels.call("sequential_floats", &[n])[0];
            assert_eq!(tiling.shared_bytes, rings + sums);
            assert!(tiling.x_depth >= 2 && tiling.depth >= 2, "{tiling:?}");
        }
    }
}

#[test]
fn splits_of_one_run_are_deferred_to_their_consumer() {
    let of = |tiles, segments, rows, record_bytes| {
        let (order, tiling) = cut(tiles, segments, rows, record_bytes, SplitKReducer::Reader);
        (order.splits, tiling.unwrap())
    };
    // Query, key and value of Llama 3.2 1B.
    let (splits, tiling) = of(192, 16, 16, 640);
    assert_eq!(
        (tiling.form(), tiling.grid, tiling.cluster()),
        ("gemm_sm90_deferred", [24 * splits, 1, 1], 0)
    );
    let (_, whole) = cut(192, 16, 16, 640, SplitKReducer::None);
    assert_eq!(whole.unwrap().form(), "gemm_sm90_cluster");
    // Llama 3.1 8B; f16 weights; long splits; a single split.
    assert_eq!(of(384, 32, 64, 640).1.form(), "gemm_sm90_deferred");
    assert_eq!(
        [16, 32].map(|rows| of(192, 16, rows, 2_048).1.form()),
        ["gemm_sm90_cluster", "gemm_sm90_deferred"]
    );
    assert_eq!(of(128, 64, 32, 640).1.form(), "gemm_sm90_cluster");
    assert_eq!(of(4, 1, 16, 640).1.form(), "gemm_sm90_cluster");
}

#[test]
fn few_rows_use_skinny_kernels_unless_k_is_large() {
    let form = |tiles, segments, rows| {
        let order = Order::of(tiles, segments, &gpu(232_448));
        let product = Product {
            record_bytes: 640,
            segments,
            tiles,
            tiles_of_op: tiles,
            rows,
            group_rows: GROUP_ROWS,
        };
        Sm90Tiling::of(&product, &order, &gpu(232_448), SplitKReducer::None).map(|cut| cut.form())
    };
    for rows in 1..=8 {
        assert_eq!(form(128, 16, rows), None);
        // Llama 3.1 8B: gate and up, down; a product with no more tiles than multiprocessors.
        let is_wide = rows >= ROWS_MIN;
        assert_eq!(form(1_792, 32, rows), is_wide.then_some("gemm_sm90_persistent"));
        assert_eq!(form(256, 112, rows), is_wide.then_some("gemm_sm90_cluster"));
        assert_eq!(form(128, 64, rows), None);
    }
}

const SEGMENTS: [u32; 9] = [1, 8, 16, 20, 24, 25, 32, 64, 112];

/// Without its kernel, a product would silently fall back to kernels/gemm/gemm_sm80.cuh.
#[test]
fn every_tiling_has_its_kernel() {
    let mut selected = BTreeSet::new();
    for ty in TensorType::ALL.into_iter().filter(|ty| on_tensor_cores(*ty)) {
        let Some(layout) = Layout::of(ty, ty.block_elements().max(128)) else { continue };
        let record_bytes = layout.record_bytes() as u32;
        let tiles = [1, 4, 33, 128, 192, 256, 384, 511, 512, 1_024, 1_216, 1_792, 3_584, 8_016];
        for (tiles, segments) in tiles.into_iter().flat_map(|n| SEGMENTS.map(|k| (n, k))) {
            for rows in [5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 256, 512] {
                for reducer in [SplitKReducer::None, SplitKReducer::Kernel, SplitKReducer::Reader] {
                    let order = Order::of(tiles, segments, &gpu(232_448));
                    let group_rows = GROUP_ROWS;
                    let product = Product {
                        record_bytes,
                        segments,
                        tiles,
                        tiles_of_op: tiles,
                        rows,
                        group_rows,
                    };
                    let tiling = Sm90Tiling::of(&product, &order, &gpu(232_448), reducer);
                    let Some(tiling) = tiling else { continue };
                    let kernel = tiling.kernel(repack::kernel_name(ty));
                    // Models with products of all types, and without Q4_1, which selects the other
                    // pair with Q6_K.
                    selected.insert(kernel.made_by(|_| true).0.names());
                    selected.insert(kernel.made_by(|ty| ty != TensorType::Q4_1).0.names());
                }
            }
        }
    }
    let mut listed = BTreeSet::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/gemm/");
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let file = path.file_stem().unwrap().to_str().unwrap();
        if path.extension().is_none_or(|extension| extension != "cu")
            || !file.starts_with(WARPGROUP_KERNELS)
        {
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((_, rest)) = line.split_once("(gemm_sm90_") else { continue };
            let (name, _) = rest.split_once(',').unwrap();
            listed.insert((file.to_owned(), format!("gemm_sm90_{name}")));
        }
    }
    let missing: Vec<_> = selected.difference(&listed).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // `Sm90Tiling::of` prefers clusters for 16 rows of x with f16 weights.
    let unused = listed.difference(&selected).map(|(_, name)| name.as_str());
    assert_eq!(unused.collect::<Vec<_>>(), ["gemm_sm90_deferred_f16_16"]);
}

#[test]
fn splits_cover_the_columns_once() {
    for segments in 1..=256 {
        for tiles in [1, 4, 33, 192, 511, 512, 8_016] {
            for shared in [65_536, 101_376, 166_912, 232_448] {
                let gpu = gpu(shared);
                let Order { splits, split_segments, runs, run } = Order::of(tiles, segments, &gpu);
                assert!((segments..segments + split_segments).contains(&(splits * split_segments)));
                assert!(runs * run >= split_segments && (runs - 1) * run < split_segments + run);
            }
        }
    }
}

#[test]
fn constants_and_shared_memory_match_the_kernels() {
    let kernels = KernelSource::read(&[
        "common/walla.cuh",
        "gemm/weight.cuh",
        "gemm/gemm_common.cuh",
        "gemm/gemm_sm90_config.cuh",
        "gemm/splitk_reduce.cu",
    ]);
    for (name, host) in [
        ("DEPTH_MAX", MAX_DEPTH),
        ("GROUP_BYTES", GROUP_BYTES),
        ("SUM_STRIDE", SUM_STRIDE),
        ("REDUCE_WARPS", REDUCE_WARPS),
        ("CTA_TILES", CTA_TILES),
        ("CTA_TILES_SMALL", CTA_TILES_SMALL),
        ("SPLITS_MAX", MAX_SPLITS),
        ("TILE_ROWS", TILE_ROWS as u32),
    ] {
        assert_eq!(kernels.constant(name), host, "{name}");
    }
    let of = |name: &str, arguments: &[u32]| kernels.call(name, arguments)[0];
    for record in records() {
        assert_eq!(weights_stage_segments(record), of("weights_stage_segments", &[record]));
        for (tiles, segments, n) in [(1_024, 16, 16), (1_216, 20, 64), (128, 64, 64), (128, 64, 16)]
            .into_iter()
            .chain([(192, 16, 32), (192, 16, 64), (128, 16, 32), (128, 64, 32), (256, 112, 64)])
        {
            for reducer in [SplitKReducer::None, SplitKReducer::Kernel, SplitKReducer::Reader] {
                let (order, tiling) = cut(tiles, segments, n, record, reducer);
                let Some(tiling) = tiling else { continue };
                let runs = tiling.splits.runs_at_once();
                let warps = tiling.tiles * runs;
                assert_eq!(tiling.rows, n);
                assert_eq!(tiling.x_stage_segments(), of("x_stage_segments", &[n]));
                let producers = of("producer_warps", &[n, runs, record]);
                assert_eq!(tiling.threads, 32 * (warps + producers), "{tiling:?}");
                let rings = runs * tiling.x_depth * of("x_stage", &[n])
                    + warps * tiling.depth * 2 * weights_stage_segments(record) * record;
                let expected = match tiling.splits {
                    Splits::One | Splits::Workspace => {
                        rings + warps * 4 * of("exchange_floats", &[n])
                    }
                    Splits::Deferred => rings,
                    Splits::Sequential => panic!("few rows"),
                    Splits::InCluster(splits) => {
                        let received = CTA_TILES.next_multiple_of(splits) * 4 * n * 16;
                        let kept = if order.runs > 1 { of("kept_floats", &[n]) } else { 0 };
                        if n > 32 {
                            let transposed = warps * 4 * 8 * SUM_STRIDE;
                            (rings + warps * 4 * kept).max(received + transposed)
                        } else {
                            received + rings
                        }
                    }
                };
                assert_eq!(tiling.shared_bytes, expected, "{tiling:?}");
            }
        }
    }
}
