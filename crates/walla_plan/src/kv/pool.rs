use std::collections::VecDeque;

use super::{Fence, PageId};

/// Pages with reference counts: free, owned, or retired behind a fence.
///
/// Free pages form a stack, so allocation is O(1) and depends only on the previous calls.
#[derive(Clone, Debug)]
pub(super) struct PagePool {
    /// Number of owners of each page; always 1 for the reserved page.
    owners: Vec<u32>,
    /// Stack of free pages.
    free: Vec<PageId>,
    /// Freed pages in fence order; pages without a fence are last.
    retired: VecDeque<Retired>,
    /// Number of entries at the end of `retired` without a fence.
    unfenced: usize,
    last_fence: Fence,
    /// Maximum number of pages owned at the same time.
    limit: u32,
    /// Pages from this index on are out of use and not allocated.
    end: u32,
    /// Pages out of use that are neither owned nor retired.
    outside: Vec<PageId>,
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    page: PageId,
    fence: Fence,
}

impl PagePool {
    pub(super) fn new(pages: u32) -> Self {
        let mut owners = vec![0; pages as usize];
        owners[PageId::PADDING.index()] = 1;
        Self {
            owners,
            // Highest first, so that the lowest page is handed out first.
            free: (1..pages).rev().map(PageId).collect(),
            retired: VecDeque::with_capacity(pages as usize),
            unfenced: 0,
            last_fence: 0,
            limit: pages - 1,
            end: pages,
            outside: Vec::with_capacity(pages as usize),
        }
    }

    /// Takes a free page for one owner. The caller has checked [`free_pages`](Self::free_pages).
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.owners[page.index()] = 1;
        Some(page)
    }

    pub(super) fn share(&mut self, page: PageId) {
        self.owners[page.index()] += 1;
    }

    /// Removes one owner. The last one retires the page.
    pub(super) fn drop_owner(&mut self, page: PageId) {
        let owners = &mut self.owners[page.index()];
        *owners -= 1;
        if *owners == 0 {
            // Without a fence until `retire` names the step behind which nothing reads the page.
            self.retired.push_back(Retired { page, fence: Fence::MAX });
            self.unfenced += 1;
        }
    }

    pub(super) fn is_shared(&self, page: PageId) -> bool {
        self.owners[page.index()] > 1
    }

    pub(super) fn retire(&mut self, fence: Fence) {
        self.last_fence = self.last_fence.max(fence);
        let first = self.retired.len() - self.unfenced;
        for retired in self.retired.range_mut(first..) {
            retired.fence = self.last_fence;
        }
        self.unfenced = 0;
    }

    pub(super) fn release_up_to(&mut self, fence: Fence) -> u32 {
        let mut released = 0;
        // Pages without a fence are at the end.
        while self.retired.len() > self.unfenced {
            match self.retired.front() {
                Some(retired) if retired.fence > fence => break,
                Some(retired) if retired.page.0 < self.end => self.free.push(retired.page),
                Some(retired) => self.outside.push(retired.page),
                None => break,
            }
            self.retired.pop_front();
            released += 1;
        }
        released
    }

    pub(super) fn pages(&self) -> u32 {
        // Built from a `u32`.
        self.owners.len() as u32
    }

    /// Pages that can be taken now.
    pub(super) fn free_pages(&self) -> u32 {
        let left = self.usable_pages().saturating_sub(self.used_pages() + self.fenced_pages());
        left.min(self.free.len() as u32)
    }

    /// Owned pages, without the reserved one.
    pub(super) fn used_pages(&self) -> u32 {
        let unowned = self.free.len() + self.outside.len() + self.retired.len();
        self.pages() - 1 - unowned as u32
    }

    /// Limits the number of pages owned at the same time, at most the pages of the arena.
    pub(super) fn limit(&mut self, pages: u32) {
        self.limit = pages.min(self.pages() - 1);
    }

    /// Retired pages that become available as steps complete, within the limit and without
    /// preemption.
    pub(super) fn coming_pages(&self) -> u32 {
        self.usable_pages().saturating_sub(self.used_pages()) - self.free_pages()
    }

    /// The limit on owned pages, reduced by pages out of use.
    pub(super) fn usable_pages(&self) -> u32 {
        self.limit.min(self.end - 1)
    }

    /// First page that is out of use.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// Withdraws pages from `end` on, and returns withdrawn pages below `end` to use. Owned pages
    /// keep their owners.
    pub(super) fn set_end(&mut self, end: u32) {
        self.end = end.clamp(1, self.pages());
        let end = self.end;
        self.outside.extend(self.free.extract_if(.., |page| page.0 >= end));
        let kept = self.free.len();
        self.free.extend(self.outside.extract_if(.., |page| page.0 < end));
        // Insert them at the bottom of the stack, highest first, as at construction.
        self.free[kept..].sort_unstable_by(|a, b| b.cmp(a));
        self.free.rotate_left(kept);
    }

    /// Moves all owners of a page to another page that was just taken, and retires the old one.
    pub(super) fn move_owners(&mut self, from: PageId, to: PageId) {
        self.owners[to.index()] = std::mem::take(&mut self.owners[from.index()]);
        self.retired.push_back(Retired { page: from, fence: Fence::MAX });
        self.unfenced += 1;
    }

    pub(super) fn fenced_pages(&self) -> u32 {
        self.retired.len() as u32
    }

    pub(super) fn owners(&self, page: PageId) -> u32 {
        self.owners[page.index()]
    }

    /// Pages without an owner: free, out of use, then retired.
    pub(super) fn unowned(&self) -> impl Iterator<Item = PageId> {
        let retired = self.retired.iter().map(|retired| retired.page);
        self.free.iter().chain(&self.outside).copied().chain(retired)
    }
}
