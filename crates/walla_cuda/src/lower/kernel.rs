//! Which kernel makes a product on tensor cores: by the parts of its name, of one type of matrices
//! or of two.

use walla_device::{DeviceError, GpuFacts};
use walla_types::TensorType;

use super::Lowering;
use super::tiling::SHARED_STATIC;
use crate::driver::{Function, Launch};
use crate::params::{MatmulParams, PairParams};
use crate::repack;

/// What the files of kernels for warpgroups begin with.
pub(crate) const WARPGROUP_KERNELS: &str = "wide";

/// The parts of a kernel's name: `form_type_columns`, in the file `family_type`.
#[derive(Debug, PartialEq)]
pub(super) struct Kernel {
    pub(super) family: &'static str,
    pub(super) form: &'static str,
    pub(super) ty: String,
    pub(super) columns: u32,
}

impl Kernel {
    /// Of the file, and of the kernel.
    fn names(&self) -> (String, String) {
        let Self { family, form, ty, columns } = self;
        (format!("{family}_{ty}"), format!("{form}_{ty}_{columns}"))
    }

    /// Whether kernels of such a form are made for two types together, where types are (`FEW_PAIR`,
    /// `WIDE_PAIRS`).
    pub(super) fn is_for_pairs(&self) -> bool {
        matches!((self.form, self.columns), ("wide_cluster" | "wide_left", _) | ("matmul", 1))
    }
}

/// Types that have kernels together, and none of their own where kernels are for pairs. So products
/// of two types with the same rows of x can be one launch, and a step runs through little code,
/// which stays in the multiprocessors' instruction caches from launch to launch.
const TOGETHER: [[TensorType; 2]; 2] =
    [[TensorType::Q4_1, TensorType::Q6K], [TensorType::Q5_1, TensorType::Q6K]];

/// A kernel that was found for a product.
pub(super) struct Found {
    function: Function,
    /// Which of two types the product's is, where the kernel is for two.
    of_two: Option<usize>,
}

impl Found {
    pub(super) fn launch(&self, grid: [u32; 3], threads: u32, params: &MatmulParams) -> Launch {
        let Some(index) = self.of_two else {
            return Launch::new(self.function, grid, threads, params);
        };
        let first_blocks = if index == 0 { grid[0] } else { 0 };
        let params = PairParams { first: *params, second: *params, first_blocks, reserved: 0 };
        Launch::new(self.function, grid, threads, &params)
    }
}

/// Shared memory that a launch of a product may ask for: all that a block can have.
fn shared_bytes_max(gpu: &GpuFacts) -> u32 {
    gpu.shared_bytes_per_block_optin as u32 - SHARED_STATIC
}

impl Lowering<'_> {
    /// A product's kernel; `None` if the image in use does not have it.
    pub(super) fn find(&mut self, kernel: &Kernel) -> Result<Option<Found>, DeviceError> {
        let (its, of_two) = self.made_by(kernel);
        let function = self.find_function(&its)?;
        Ok(function.map(|function| Found { function, of_two }))
    }

    /// A product's kernel, which every image has.
    pub(super) fn get(&mut self, kernel: &Kernel) -> Result<Found, DeviceError> {
        let (its, of_two) = self.made_by(kernel);
        let (file, name) = its.names();
        let shared_bytes_max = shared_bytes_max(&self.context.gpu().facts);
        let function = self.kernels.get(self.context, &file, &name, shared_bytes_max)?;
        Ok(Found { function, of_two })
    }

    /// The kernel that makes a product: that of two types, and which of them it is, where the type
    /// has no kernel of its own.
    fn made_by(&self, kernel: &Kernel) -> (Kernel, Option<usize>) {
        let together = kernel.is_for_pairs().then(|| self.together(&kernel.ty)).flatten();
        let (ty, of_two) = match together {
            Some((index, ty)) => (ty, Some(index)),
            None => (kernel.ty.clone(), None),
        };
        (Kernel { ty, ..*kernel }, of_two)
    }

    /// The very kernel of this name, of one type or of two; `None` if the image in use does not
    /// have it.
    pub(super) fn find_function(
        &mut self,
        kernel: &Kernel,
    ) -> Result<Option<Function>, DeviceError> {
        let (file, name) = kernel.names();
        let shared_bytes_max = shared_bytes_max(&self.context.gpu().facts);
        self.kernels.find(self.context, &file, &name, shared_bytes_max)
    }

    /// The types that a type has kernels together with, by name, and which of the two it is. Where
    /// there are several, those that this model has.
    fn together(&self, ty: &str) -> Option<(usize, String)> {
        let of_two = TOGETHER.map(|types| (types, types.map(repack::kernel_name)));
        let with_it = || of_two.iter().filter(|(_, names)| names.iter().any(|name| name == ty));
        let is_here =
            |types: &[TensorType; 2]| types.iter().all(|ty| self.resources.has_products_of(*ty));
        let (_, names) =
            with_it().find(|(types, _)| is_here(types)).or_else(|| with_it().next())?;
        Some((usize::from(names[0] != ty), names.join("_")))
    }
}
