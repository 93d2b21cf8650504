//! Selects the kernel of a tensor-core product by the parts of its name. A kernel takes matrices of
//! one type or of two.

use walla_device::{DeviceError, GpuFacts};
use walla_types::TensorType;

use super::Lowering;
use crate::driver::{Function, Launch};
use crate::params::{
    GemmSkinnyPairParams, GemmSkinnyParams, GemmSm80Params, GemmSm90PairParams, GemmSm90Params,
};
use crate::repack;

/// Maximum static shared memory of a kernel, in bytes.
pub(super) const SHARED_STATIC: u32 = 4_352;
/// Shared memory of a multiprocessor that the driver reserves per block. The opt-in maximum of a
/// block excludes one block's share.
pub(super) const SHARED_OF_DRIVER: u32 = 1_024;

/// Name prefix of the files with WGMMA kernels.
pub(crate) const WARPGROUP_KERNELS: &str = "gemm_sm90";

/// The parts of a kernel's name: `form_type_rows`, in the file `family_type`.
#[derive(Debug, PartialEq)]
pub(super) struct Kernel {
    pub(super) family: &'static str,
    pub(super) form: &'static str,
    pub(super) ty: String,
    pub(super) rows: u32,
}

impl Kernel {
    /// Names of file and kernel.
    pub(super) fn names(&self) -> (String, String) {
        let Self { family, form, ty, rows } = self;
        (format!("{family}_{ty}"), format!("{form}_{ty}_{rows}"))
    }

    /// Whether kernels of this form exist for pairs of types (`GEMM_SKINNY_PAIR`,
    /// `GEMM_SM90_PAIR`).
    pub(super) fn is_for_pairs(&self) -> bool {
        matches!(
            (self.form, self.rows),
            ("gemm_sm90_cluster" | "gemm_sm90_deferred" | "gemm_sm90_wide", _) | ("gemm_skinny", _)
        )
    }

    /// The kernel for a product. If the type has no kernel for one type, this is the kernel for two
    /// types, with the index of the product's type. `is_here`: whether the model has products of a
    /// type.
    pub(super) fn made_by(&self, is_here: impl Fn(TensorType) -> bool) -> (Self, Option<usize>) {
        let together = self.is_for_pairs().then(|| together(&self.ty, is_here)).flatten();
        let (ty, of_two) = match together {
            Some((index, ty)) => (ty, Some(index)),
            None => (self.ty.clone(), None),
        };
        (Self { ty, ..*self }, of_two)
    }
}

/// Pairs of types that share kernels; in forms for pairs, these types have no kernels for one type.
/// Products of two types with the same rows of x can then be one launch. A step also executes less
/// code, which stays in the instruction caches of the multiprocessors between launches.
const TOGETHER: [[TensorType; 2]; 2] =
    [[TensorType::Q4_1, TensorType::Q6K], [TensorType::Q5_1, TensorType::Q6K]];

/// The name of a pair that includes a type, and the type's index in it. Prefers a pair whose types
/// are both in this model.
fn together(ty: &str, is_here: impl Fn(TensorType) -> bool) -> Option<(usize, String)> {
    let of_two = TOGETHER.map(|types| (types, types.map(repack::kernel_name)));
    let with_it = || of_two.iter().filter(|(_, names)| names.iter().any(|name| name == ty));
    let are_here = |types: &[TensorType; 2]| types.iter().all(|ty| is_here(*ty));
    let (_, names) = with_it().find(|(types, _)| are_here(types)).or_else(|| with_it().next())?;
    Some((usize::from(names[0] != ty), names.join("_")))
}

/// A kernel found for a product.
pub(super) struct Found {
    function: Function,
    /// Index of the product's type, if the kernel takes two types.
    of_two: Option<usize>,
}

impl Found {
    pub(super) fn launch(&self, grid: [u32; 3], threads: u32, params: &Params) -> Launch {
        let Some(index) = self.of_two else {
            return params.launch(self.function, grid, threads);
        };
        let first_ctas = if index == 0 { grid[0] } else { 0 };
        let pair = params.pair(params, self.function, grid, threads, first_ctas);
        pair.unwrap_or_else(|| params.launch(self.function, grid, threads))
    }
}

/// Parameters of a product's kernel, by family.
#[derive(Clone, Copy, Debug)]
pub(super) enum Params {
    Skinny(GemmSkinnyParams),
    Sm80(GemmSm80Params),
    Sm90(GemmSm90Params),
}

impl Params {
    /// A launch of the kernel for one type.
    fn launch(&self, function: Function, grid: [u32; 3], threads: u32) -> Launch {
        match self {
            Self::Skinny(params) => Launch::new(function, grid, threads, params),
            Self::Sm80(params) => Launch::new(function, grid, threads, params),
            Self::Sm90(params) => Launch::new(function, grid, threads, params),
        }
    }

    /// A launch of the kernel for two types, whose first `first_ctas` blocks compute this product.
    /// `None` if the products have different families, or the family has no such kernel.
    pub(super) fn pair(
        &self,
        second: &Self,
        function: Function,
        grid: [u32; 3],
        threads: u32,
        first_ctas: u32,
    ) -> Option<Launch> {
        match (*self, *second) {
            (Self::Skinny(first), Self::Skinny(second)) => {
                let params = GemmSkinnyPairParams { first, second, first_ctas, reserved: 0 };
                Some(Launch::new(function, grid, threads, &params))
            }
            (Self::Sm90(first), Self::Sm90(second)) => {
                let params = GemmSm90PairParams { first, second, first_ctas, reserved: 0 };
                Some(Launch::new(function, grid, threads, &params))
            }
            _ => None,
        }
    }
}

/// Whether `resident` blocks of a product fit on a multiprocessor.
pub(super) fn fits(shared_bytes: u32, resident: u32, gpu: &GpuFacts) -> bool {
    let each = u64::from(shared_bytes + SHARED_STATIC + SHARED_OF_DRIVER);
    let all = gpu.shared_bytes_per_block_optin + u64::from(SHARED_OF_DRIVER);
    each * u64::from(resident) <= all
}

/// Maximum dynamic shared memory of a product's launch: all that a block can have.
pub(super) fn max_shared_bytes(gpu: &GpuFacts) -> u32 {
    gpu.shared_bytes_per_block_optin as u32 - SHARED_STATIC
}

impl Lowering<'_> {
    /// A product's kernel; `None` if the image in use lacks it.
    pub(super) fn find(&mut self, kernel: &Kernel) -> Result<Option<Found>, DeviceError> {
        let (its, of_two) = kernel.made_by(|ty| self.resources.has_products_of(ty));
        let function = self.find_function(&its)?;
        Ok(function.map(|function| Found { function, of_two }))
    }

    /// A product's kernel, which every image has.
    pub(super) fn get(&mut self, kernel: &Kernel) -> Result<Found, DeviceError> {
        let missing = || DeviceError::Invalid(format!("no kernel {kernel:?} in the images"));
        self.find(kernel)?.ok_or_else(missing)
    }

    /// The kernel with exactly this name, for one type or for two; `None` if the image in use lacks
    /// it.
    pub(super) fn find_function(
        &mut self,
        kernel: &Kernel,
    ) -> Result<Option<Function>, DeviceError> {
        let (file, name) = kernel.names();
        let max_shared_bytes = max_shared_bytes(&self.context.gpu().facts);
        self.kernels.find(self.context, &file, &name, max_shared_bytes)
    }
}
