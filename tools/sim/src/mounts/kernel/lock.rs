//! The kernel's locks: first come, first served, in simulated time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

#[derive(Default)]
struct State {
    readers: usize,
    writer: bool,
    waiting: VecDeque<(u64, bool, Option<Waker>)>,
    tickets: u64,
}

impl State {
    fn admits(&self, exclusive: bool) -> bool {
        !self.writer && (!exclusive || self.readers == 0)
    }

    fn wake_first(&mut self) {
        if let Some((_, _, waker)) = self.waiting.front_mut()
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }
}

/// A lock that many may hold to read, or one to write.
#[derive(Clone, Default)]
pub struct KernelLock(Rc<RefCell<State>>);

/// Holds it.
pub struct Guard {
    lock: KernelLock,
    exclusive: bool,
}

impl KernelLock {
    pub async fn shared(&self) -> Guard {
        self.acquire(false).await
    }

    pub async fn exclusive(&self) -> Guard {
        self.acquire(true).await
    }

    async fn acquire(&self, exclusive: bool) -> Guard {
        let ticket = {
            let mut state = self.0.borrow_mut();
            state.tickets += 1;
            let ticket = state.tickets;
            state.waiting.push_back((ticket, exclusive, None));
            ticket
        };
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            let admitted = state.admits(exclusive);
            match state.waiting.front_mut() {
                Some((first, _, waker)) if *first == ticket => {
                    if admitted {
                        state.waiting.pop_front();
                        match exclusive {
                            true => state.writer = true,
                            false => state.readers += 1,
                        }
                        // The next one may be a reader, too.
                        state.wake_first();
                        return Poll::Ready(());
                    }
                    *waker = Some(cx.waker().clone());
                }
                _ => {
                    let own = state.waiting.iter_mut().find(|(other, ..)| *other == ticket);
                    if let Some((_, _, waker)) = own {
                        *waker = Some(cx.waker().clone());
                    }
                }
            }
            Poll::Pending
        })
        .await;
        Guard { lock: self.clone(), exclusive }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.lock.0.borrow_mut();
        match self.exclusive {
            true => state.writer = false,
            false => state.readers -= 1,
        }
        state.wake_first();
    }
}
