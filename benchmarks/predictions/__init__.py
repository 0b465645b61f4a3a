"""What predicted outputs save: answers edited in known ways, as predictions of themselves."""
