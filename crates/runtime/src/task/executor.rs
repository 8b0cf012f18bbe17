//! The executor: a queue of tasks that were woken, polled in that order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A deterministic single-threaded executor. Dropping it drops its tasks.
#[derive(Default)]
pub struct Executor {
    inner: Rc<Inner>,
}

/// Spawns onto an [`Executor`] from inside its own tasks, without keeping it alive.
#[derive(Clone)]
pub struct Spawner {
    inner: Weak<Inner>,
}

#[derive(Default)]
struct Inner {
    tasks: RefCell<Tasks>,
    woken: Arc<Woken>,
    live: Cell<usize>,
}

#[derive(Default)]
struct Tasks {
    entries: Vec<TaskEntry>,
    free: Vec<usize>,
}

#[derive(Default)]
struct TaskEntry {
    /// Counts the tasks that have lived here, so that a late wake cannot reach the next one.
    generation: u64,
    task: Option<Task>,
}

struct Task {
    future: LocalFuture,
    handle: Arc<TaskWaker>,
    waker: Waker,
}

/// The queue of (index, generation) to poll. Shared with wakers, hence `Sync`; in practice only
/// one thread locks it.
#[derive(Default)]
struct Woken(Mutex<VecDeque<(usize, u64)>>);

impl Woken {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(usize, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    index: usize,
    generation: u64,
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.woken.lock().push_back((self.index, self.generation));
        }
    }
}

impl Executor {
    /// An executor without tasks.
    pub fn new() -> Executor {
        Executor::default()
    }

    /// Adds a task at the queue's end; it first runs in [`Executor::run_until_stalled`].
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.inner.spawn(Box::pin(future));
    }

    /// A handle that tasks may keep.
    pub fn spawner(&self) -> Spawner {
        Spawner { inner: Rc::downgrade(&self.inner) }
    }

    /// Polls woken tasks, in the order of their wakes, until none is woken. Returns the number
    /// of polls.
    pub fn run_until_stalled(&self) -> usize {
        let mut polls = 0;
        loop {
            let next = self.inner.woken.lock().pop_front();
            let Some((index, generation)) = next else {
                return polls;
            };
            polls += usize::from(self.inner.poll(index, generation));
        }
    }

    /// Drops all tasks. What they wake or spawn meanwhile is dropped, too.
    pub fn clear(&self) {
        loop {
            // A task's destructor may wake or spawn others, so none runs under the borrow.
            let tasks = std::mem::take(&mut *self.inner.tasks.borrow_mut());
            if tasks.entries.is_empty() {
                break;
            }
            drop(tasks);
        }
        self.inner.woken.lock().clear();
        self.inner.live.set(0);
    }

    /// Tasks that have not finished.
    pub fn len(&self) -> usize {
        self.inner.live.get()
    }

    /// Whether every task has finished.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Spawner {
    /// As [`Executor::spawn`]; drops the future when the executor is gone.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        if let Some(inner) = self.inner.upgrade() {
            inner.spawn(Box::pin(future));
        }
    }
}

impl Inner {
    fn spawn(&self, future: LocalFuture) {
        let mut tasks = self.tasks.borrow_mut();
        let index = tasks.free.pop().unwrap_or_else(|| {
            tasks.entries.push(TaskEntry::default());
            tasks.entries.len() - 1
        });
        let generation = tasks.entries[index].generation;
        let woken = self.woken.clone();
        let handle =
            Arc::new(TaskWaker { index, generation, queued: AtomicBool::new(false), woken });
        let waker = Waker::from(handle.clone());
        handle.wake_by_ref();
        tasks.entries[index].task = Some(Task { future, handle, waker });
        self.live.set(self.live.get() + 1);
    }

    /// Polls the task, unless it has finished meanwhile. The task is out of its index while it
    /// runs, so that it may spawn.
    fn poll(&self, index: usize, generation: u64) -> bool {
        let task = match self.tasks.borrow_mut().entries.get_mut(index) {
            Some(found) if found.generation == generation => found.task.take(),
            _ => None,
        };
        let Some(mut task) = task else { return false };
        task.handle.queued.store(false, Ordering::Release);
        let state = task.future.as_mut().poll(&mut Context::from_waker(&task.waker));
        match state {
            Poll::Pending => {
                if let Some(found) = self.tasks.borrow_mut().entries.get_mut(index) {
                    found.task = Some(task);
                }
            }
            Poll::Ready(()) => {
                drop(task);
                self.live.set(self.live.get() - 1);
                let mut tasks = self.tasks.borrow_mut();
                if let Some(found) = tasks.entries.get_mut(index) {
                    found.generation += 1;
                    tasks.free.push(index);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::oneshot;
    use std::future::poll_fn;

    fn yield_now() -> impl Future<Output = ()> {
        let mut yielded = false;
        poll_fn(move |cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[test]
    fn runs_in_the_order_of_wakes() {
        let executor = Executor::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        for id in 0..3 {
            let log = log.clone();
            executor.spawn(async move {
                for round in 0..2 {
                    log.borrow_mut().push((round, id));
                    yield_now().await;
                }
            });
        }
        assert!(log.borrow().is_empty(), "spawn must not poll");
        assert_eq!(executor.run_until_stalled(), 9);
        assert_eq!(*log.borrow(), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert!(executor.is_empty());
        assert_eq!(executor.run_until_stalled(), 0);
    }

    #[test]
    fn tasks_spawn_tasks() {
        let executor = Executor::new();
        let spawner = executor.spawner();
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        executor.spawn(async move {
            for _ in 0..3 {
                let count = count.clone();
                spawner.spawn(async move { count.set(count.get() + 1) });
            }
        });
        executor.run_until_stalled();
        assert_eq!(done.get(), 3);
    }

    #[test]
    fn a_late_wake_does_not_poll_the_next_task_in_the_entry() {
        let executor = Executor::new();
        let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
        let keep = kept.clone();
        executor.spawn(poll_fn(move |cx| {
            *keep.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        }));
        executor.run_until_stalled();
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        executor.spawn(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::Pending
        }));
        executor.run_until_stalled();
        kept.borrow().as_ref().expect("the first task ran").wake_by_ref();
        executor.run_until_stalled();
        assert_eq!(polls.get(), 1);
        assert_eq!(executor.len(), 1);
    }

    #[test]
    fn wakes_from_another_thread_arrive() {
        let executor = Executor::new();
        let ready = Arc::new(AtomicBool::new(false));
        let (tx, rx) = std::sync::mpsc::channel::<Waker>();
        let flag = ready.clone();
        executor.spawn(poll_fn(move |cx| {
            if flag.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            tx.send(cx.waker().clone()).expect("the other thread waits");
            Poll::Pending
        }));
        let other = std::thread::spawn(move || {
            let waker = rx.recv().expect("one waker");
            ready.store(true, Ordering::Release);
            waker.wake();
        });
        executor.run_until_stalled();
        other.join().expect("no panic");
        executor.run_until_stalled();
        assert!(executor.is_empty());
    }

    #[test]
    fn dropping_the_executor_drops_its_tasks() {
        let executor = Executor::new();
        let spawner = executor.spawner();
        let (tx, rx) = oneshot::<u32>();
        executor.spawn(async move {
            let _again = spawner;
            let _ = rx.await;
        });
        executor.run_until_stalled();
        drop(executor);
        assert!(tx.is_canceled());
    }

    #[test]
    fn a_task_that_spawns_as_it_is_dropped_does_so_in_vain() {
        struct Bomb(Spawner);
        impl Drop for Bomb {
            fn drop(&mut self) {
                self.0.spawn(async {});
            }
        }
        let executor = Executor::new();
        let bomb = Bomb(executor.spawner());
        executor.spawn(async {});
        executor.spawn(async move {
            let _bomb = bomb;
            std::future::pending().await
        });
        // The first index is free now.
        executor.run_until_stalled();
        executor.clear();
        assert!(executor.is_empty());
        assert_eq!(executor.run_until_stalled(), 0);
    }
}
