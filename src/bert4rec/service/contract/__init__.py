"""What is agreed with clients: the models of requests and responses, and the documents made from them."""
