"""Lost stages with and without processes that wait for them."""
