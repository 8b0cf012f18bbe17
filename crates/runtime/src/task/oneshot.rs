//! One value from one task to another, on one thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The sender was dropped without sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("canceled")]
pub struct Canceled;

struct Shared<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

/// Sends the value.
pub struct Sender<T>(Rc<RefCell<Shared<T>>>);

/// A future of the value, or of [`Canceled`].
pub struct Receiver<T>(Rc<RefCell<Shared<T>>>);

/// A connected pair.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Shared { value: None, waker: None, sender_gone: false, receiver_gone: false };
    let shared = Rc::new(RefCell::new(shared));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends `value` and wakes the receiver.
    ///
    /// # Errors
    /// Gives `value` back when the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut shared = self.0.borrow_mut();
        if shared.receiver_gone {
            return Err(value);
        }
        shared.value = Some(value);
        Ok(())
        // Dropping `self` wakes the receiver.
    }

    /// Whether the receiver is gone.
    pub fn is_canceled(&self) -> bool {
        self.0.borrow().receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut shared = self.0.borrow_mut();
        shared.sender_gone = true;
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Canceled>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = self.0.borrow_mut();
        if let Some(value) = shared.value.take() {
            return Poll::Ready(Ok(value));
        }
        if shared.sender_gone {
            return Poll::Ready(Err(Canceled));
        }
        match &mut shared.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut shared = self.0.borrow_mut();
        shared.receiver_gone = true;
        // The destructors of a value nobody took and of a waker may run anything.
        let left = (shared.value.take(), shared.waker.take());
        drop(shared);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Executor;

    /// What a task that waits for `receiver` gets after `act` ran while it waited.
    fn outcome(act: impl FnOnce(Sender<u32>)) -> Option<Result<u32, Canceled>> {
        let executor = Executor::new();
        let (tx, rx) = oneshot();
        let got = Rc::new(RefCell::new(None));
        let result = got.clone();
        executor.spawn(async move { *result.borrow_mut() = Some(rx.await) });
        executor.run_until_stalled();
        assert_eq!(*got.borrow(), None);
        act(tx);
        executor.run_until_stalled();
        got.take()
    }

    #[test]
    fn delivers_or_cancels() {
        assert_eq!(outcome(|tx| tx.send(5).expect("receiver lives")), Some(Ok(5)));
        assert_eq!(outcome(drop), Some(Err(Canceled)));
    }

    #[test]
    fn gives_the_value_back_without_a_receiver() {
        let (tx, rx) = oneshot();
        assert!(!tx.is_canceled());
        drop(rx);
        assert!(tx.is_canceled());
        assert_eq!(tx.send(5), Err(5));
    }
}
